"""`experiments/NAME.toml`: what a table asks, and which runs answer it.

    title = "One round beside fifteen"
    asks = "Is one exchange of sums as good as fifteen rounds of training?"
    seeds = [0, 1, 2]
    baseline = "fedavg"

    [options]                       # of every `sim run`, by its long options; a dotted key is one of its --set
    epochs = 2

    [sets.motionsense]              # a row group for each data set, with options of its own
    holdout = "leave-subjects-out:8"

    [arms.fedavg]                   # a row for each arm
    method = "fedavg"
    model = "har_cnn"
    tune = true                     # the combination of [tuning.grid] that the validation windows choose

    [tuning]
    seed = 1000

    [tuning.grid]
    lr = [3e-4, 1e-3, 3e-3]
    normalization = ["client", "federated"]

    [pretraining.mae]               # a run without labels that arms start from: init = "pretrained:mae"
    task = "masked_reconstruction"
    method = "centralized"
    data = {motionsense = "ucihar+spsw"}  # by the table's data set

    [stop]                          # rounds = where this arm's validation curve is flat
    arm = "fedavg"
    max_rounds = 100

An arm's options win over a set's, and a set's over those of every run.

From a declaration to its cells: one run of one arm on one data set with one seed, named by what it computes.
A cell's key is a digest of its options alone. So two tables that ask for the same run share its summary, and nothing is
run twice.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gaitway.errors import closest, first_problem
from gaitway.strict_numbers import TypedNumbers
from sim.errors import SettingsError
from sim.experiment.options import option_words
from sim.experiment.settings import DEFAULTS
from sim.sweep.arena.measures import MEASURES, CellSummary, Summaries

FOLDER = Path("experiments")
"""Where declarations lie, from the root of a checkout."""

PRETRAINED = "pretrained:"
"""Before the name of a pretraining in a declaration, and before the key of its run in a cell."""

Value = str | int | float | bool | None | list[Any]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class DeclarationPart(TypedNumbers, BaseModel):
    """A frozen part of a declaration, which refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Tuning(DeclarationPart):
    """The options that are tried for each arm with `tune`, at one seed that the table itself does not have."""

    seed: Seed = 1000
    grid: dict[str, Annotated[tuple[Value, ...], Field(min_length=1, max_length=16)]] = Field(
        min_length=1, max_length=4, description="options of `sim run` and their values, of which all combinations run"
    )

    def combinations(self) -> list[dict[str, Value]]:
        """Return the options of each run of an arm."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]


class Pretraining(TypedNumbers, BaseModel):
    """A run whose network arms with `init = "pretrained:NAME"` start from, of the same seed."""

    model_config = ConfigDict(frozen=True, extra="allow")

    data: dict[str, str] = Field(description="what it learns from, by the table's data set")

    @property
    def options(self) -> Mapping[str, Value]:
        """Options of `sim run`, but for the data."""
        return self.__pydantic_extra__ or {}


class StopRule(DeclarationPart):
    """How many rounds each arm has that does not say so: until the validation curve of one arm is flat.

    Flat: the best validation score of the `window` rounds that follow is less than `gain` above the best so far.
    """

    arm: str
    max_rounds: int = Field(default=100, ge=1, le=10_000)
    window: int = Field(default=10, ge=1, le=1000)
    gain: float = Field(default=0.005, ge=0, le=1)


class Arm(TypedNumbers, BaseModel):
    """A row: its options of `sim run`, what it is called, and whether they are tuned."""

    model_config = ConfigDict(frozen=True, extra="allow")

    label: str | None = None
    tune: bool = False

    @property
    def options(self) -> Mapping[str, Value]:
        """Options of `sim run`."""
        return self.__pydantic_extra__ or {}

    @property
    def pretraining(self) -> str | None:
        """The name of the pretraining that it starts from."""
        init = str(self.options.get("init", ""))
        return init.removeprefix(PRETRAINED) if init.startswith(PRETRAINED) else None


class Declaration(DeclarationPart):
    """One table."""

    title: str = Field(min_length=1, max_length=120)
    asks: str = Field(min_length=1, max_length=500, description="in one sentence")
    reads: str = Field(default="", max_length=2000, description="what is read from it, once it is there")
    part: Literal["methods", "conditions", "fedali", "papers", "unlisted"] = Field(
        default="methods", description="where docs/results.md shows it; unlisted: only in measures.csv"
    )
    seeds: tuple[Seed, ...] = Field(min_length=1, max_length=100)
    baseline: str
    compared: str = Field(default="own", description="the measure of the paired differences")
    options: dict[str, Value] = Field(default_factory=dict)
    sets: dict[str, dict[str, Value]] = Field(min_length=1, max_length=32)
    arms: dict[str, Arm] = Field(min_length=1, max_length=64)
    tuning: Tuning | None = None
    pretraining: dict[str, Pretraining] = Field(default_factory=dict)
    stop: StopRule | None = None

    @model_validator(mode="after")
    def _names_what_is_there(self) -> Declaration:
        _require(self.compared, MEASURES, "compared")
        _require(self.baseline, self.arms, "baseline")
        for name in filter(None, (arm.pretraining for arm in self.arms.values())):
            _require(name, self.pretraining, "init")
            for data in self.sets:
                _require(data, self.pretraining[name].data, f"pretraining.{name}.data")
        if self.stop:
            _require(self.stop.arm, self.arms, "stop.arm")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: one is there twice")
        if self.tuning and self.tuning.seed in self.seeds:
            raise ValueError(f"tuning.seed = {self.tuning.seed} is one of the table's own seeds; take another")
        if not self.tuning and (tuned := [name for name, arm in self.arms.items() if arm.tune]):
            raise ValueError(f"arms.{tuned[0]}.tune: there is no [tuning] that says between which options")
        return self


def _require(name: str, known: Mapping[str, Any], where: str) -> None:
    if name not in known:
        near = closest(name, known)
        raise ValueError(f"{where}: {name!r} is not known; " + (f"did you mean {near}?" if near else ", ".join(known)))


def read_declaration(path: Path) -> Declaration:
    """Read a table's declaration.

    Raises:
        SettingsError: if the file is not there, not TOML, or says what cannot be run, naming the key.
    """
    try:
        return Declaration.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.toml"))) or "none"
        raise SettingsError(f"{path}: {error.strerror}; tables that are declared: {known}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        raise SettingsError(f"{path}: {first_problem(error, input_shown=True, model=Declaration)}") from error


Options = Mapping[str, Value]


class ArenaCell(NamedTuple):
    """One run; `group` is what the table calls its data set, "camvid by drive" for instance.

    `pretrained` is the run whose network it starts from, which its option `init` names by its key. `only_decides`: no
    row shows it, and what it decides by is validation windows.
    """

    group: str
    arm: str
    seed: int
    options: Options
    pretrained: ArenaCell | None = None
    only_decides: bool = False

    @property
    def key(self) -> str:
        """Name of its summary and its run directory: readable, and of its options alone."""
        what = "-".join(str(self.options[name]) for name in ("data", "method", "model") if name in self.options)
        return f"{what}-s{self.seed}-{digest(self.options)}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of `sim run`, but for where the data and the run's directory are."""
        words: list[str] = []
        for name, value in self.options.items():
            words += ["--set", f"{name}={_text(value)}"] if "." in name else option_words(name, value)
        return tuple(words)


def pretrained_key(arguments: Sequence[str]) -> str | None:
    """Return the key of the run that a cell with these arguments starts from, if it does."""
    return next((word.removeprefix(PRETRAINED) for word in arguments if word.startswith(PRETRAINED)), None)


def with_pretrained(arguments: Sequence[str], runs: Path) -> tuple[str, ...]:
    """Return a cell's arguments for a machine on which the run that it starts from lies in the folder `runs`."""
    return tuple(
        str(runs / word.removeprefix(PRETRAINED)) if word.startswith(PRETRAINED) else word for word in arguments
    )


def digest(options: Options) -> str:
    """Return ten digits that tell options apart, whatever their order."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:10]


def _text(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def tuning_cells(declaration: Declaration, data: str, name: str, rounds: int | None) -> list[ArenaCell]:
    """Return the runs that choose an arm's tuned options; none where it is not tuned."""
    tuning = declaration.tuning
    if tuning is None or not declaration.arms[name].tune:
        return []
    cells = [_cell(declaration, data, name, tuning.seed, rounds, tried) for tried in tuning.combinations()]
    return [cell._replace(only_decides=True) for cell in cells]


def stopping_cell(declaration: Declaration, data: str) -> ArenaCell | None:
    """Return the run whose validation curve says how many rounds the arms have; None where they say it themselves."""
    if declaration.stop is None:
        return None
    stop, seed = declaration.stop, declaration.tuning.seed if declaration.tuning else declaration.seeds[0]
    return _cell(declaration, data, stop.arm, seed, stop.max_rounds, {})


def table_cells(declaration: Declaration, data: str, name: str, known: Summaries) -> list[ArenaCell] | None:
    """Return an arm's cells, one a seed; None while the runs that choose its options or rounds are not done."""
    rounds: int | None = None
    if (stopping := stopping_cell(declaration, data)) is not None:
        curve = known.get(stopping.key)
        if curve is None:
            return None
        rounds = flat_round(declaration, curve)
    chosen: Options = {}
    if tried := tuning_cells(declaration, data, name, rounds):
        if any(cell.key not in known for cell in tried):
            return None
        best = max(tried, key=lambda cell: _validated(known[cell.key]))
        chosen = tuned_options(declaration, best)
    return [_cell(declaration, data, name, seed, rounds, chosen) for seed in declaration.seeds]


def tuned_options(declaration: Declaration, cell: ArenaCell) -> Options:
    """Return what a cell has of the options that the table tunes."""
    grid = declaration.tuning.grid if declaration.tuning else {}
    return {option: cell.options.get(option, DEFAULTS.get(option)) for option in grid}


def _validated(summary: CellSummary) -> float:
    """Return a run's score on validation windows, the higher the better; of equal ones the first of a grid is taken."""
    if summary.validation is None or math.isnan(summary.validation):
        return -math.inf
    return summary.validation if summary.higher_is_better else -summary.validation


def flat_round(declaration: Declaration, curve: CellSummary) -> int:
    """Return the first round after which the validation score gains less than `stop.gain` in `stop.window` rounds."""
    stop = declaration.stop
    if stop is None or not curve.validation_curve:
        return curve.rounds
    best = 0.0
    for number, score in curve.validation_curve:
        best = max(best, score)
        later = [value for when, value in curve.validation_curve if number < when <= number + stop.window]
        if number + stop.window <= curve.rounds and max(later, default=best) - best < stop.gain:
            return number
    return curve.rounds


def open_cells(declaration: Declaration, known: Summaries) -> Iterator[ArenaCell]:
    """Return the runs that are missing and can be made now; those that they decide come once these are done."""
    for data in declaration.sets:
        stopping = stopping_cell(declaration, data)
        if stopping is not None and stopping.key not in known:
            yield stopping
            continue
        rounds = flat_round(declaration, known[stopping.key]) if stopping is not None else None
        for name in declaration.arms:
            tried = tuning_cells(declaration, data, name, rounds)
            cells = table_cells(declaration, data, name, known)
            yield from (cell for cell in (tried if cells is None else cells) if cell.key not in known)


def _cell(declaration: Declaration, data: str, name: str, seed: int, rounds: int | None, tuned: Options) -> ArenaCell:
    arm: Arm = declaration.arms[name]
    decided: dict[str, Value] = {"rounds": rounds} if rounds is not None else {}
    options = {"data": data, **declaration.options, **decided, **declaration.sets[data], **arm.options}
    # A tuned option at its default is left out: a table that is not tuned has the same run under the same key.
    usual = {} if {"preset", "plan"} & options.keys() else DEFAULTS
    chosen = {option: value for option, value in tuned.items() if option not in usual or usual[option] != value}
    rest = {option: value for option, value in options.items() if option not in tuned}
    pretrained = _pretraining(declaration, data, arm.pretraining, seed) if arm.pretraining else None
    start: dict[str, Value] = {"init": PRETRAINED + pretrained.key} if pretrained else {}
    return ArenaCell(data, name, seed, {**rest, **chosen, **start, "seed": seed}, pretrained)


def _pretraining(declaration: Declaration, data: str, name: str, seed: int) -> ArenaCell:
    pretraining = declaration.pretraining[name]
    return ArenaCell(data, name, seed, {"data": pretraining.data[data], **pretraining.options, "seed": seed})
