"""From a declaration to its cells: one run of one arm on one data set with one seed, named by what it computes.

A cell's key is a digest of its options alone. So two tables that ask for the same run share its summary, and nothing is
run twice.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sim.experiment.options import option_words
from sim.experiment.settings import DEFAULTS
from sim.sweep.arena.declaration import PRETRAINED, Arm, Declaration, Value
from sim.sweep.arena.summary import CellSummary, Summaries

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
        later = [one for when, one in curve.validation_curve if number < when <= number + stop.window]
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
