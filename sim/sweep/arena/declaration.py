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
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gaitway.errors import closest, first_problem
from gaitway.strict_numbers import TypedNumbers
from sim.errors import SettingsError
from sim.sweep.arena.measures import MEASURES

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
