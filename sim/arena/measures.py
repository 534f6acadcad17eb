"""What a table shows of a run: a name, a heading, and how it is read from the run's directory.

Scores are those of the round that the validation windows chose, in the task's primary metric; nothing is chosen by a
test set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sim.data.holdout import SHOTS
from sim.results.records import SelectedRound, Spread, Summary
from sim.results.run_directory import RunDirectory


class Measure(NamedTuple):
    """A column."""

    heading: str
    is_score: bool
    """Of the task's primary metric, in percent where that is a share; else a cost, of which less is better."""
    read: Callable[[RunDirectory], float | None]


def chosen(run: RunDirectory) -> SelectedRound:
    """Return the scores of the round that claims may rest on."""
    summary = _summary(run)
    found = summary.selected(summary.trusted)
    return found if found is not None else summary.last


def _summary(run: RunDirectory) -> Summary:
    if run.summary is None:
        raise ValueError(f"{run.path} is not finished")
    return run.summary


def _mean(run: RunDirectory, scores: Spread | None) -> float | None:
    return scores[run.config.primary[0]].mean if scores else None


def _server(run: RunDirectory) -> float | None:
    scores = chosen(run).global_
    return scores.get(run.config.primary[0]) if scores else None


def _new(shots: int) -> Callable[[RunDirectory], float | None]:
    def read(run: RunDirectory) -> float | None:
        new = _summary(run).new_clients
        return _mean(run, new.shots.get(shots)) if new else None

    return read


def _new_unlabelled(run: RunDirectory) -> float | None:
    new = _summary(run).new_clients
    return _mean(run, new.unlabelled) if new else None


def _worst_tenth(run: RunDirectory) -> float | None:
    return run.worst_tenth(run.config.primary[0], _summary(run).trusted)


def _upload_mb(run: RunDirectory) -> float:
    return _summary(run).bytes_up * len(run.rounds) / 1e6


MEASURES: Mapping[str, Measure] = {
    "own": Measure("own later windows", True, lambda run: _mean(run, chosen(run).personalization)),
    "others": Measure("others' windows", True, lambda run: _mean(run, chosen(run).generalization)),
    "server": Measure("server's model", True, _server),
    "worst_tenth": Measure("worst tenth", True, _worst_tenth),
    "new": Measure("new users", True, _new(0)),
    **{f"new_{k}": Measure(f"new, {k} windows", True, _new(k)) for k in SHOTS if k},
    "new_unlabelled": Measure("new, no labels", True, _new_unlabelled),
    "upload_mb": Measure("MB up", False, _upload_mb),
    "seconds": Measure("seconds", False, lambda run: _summary(run).seconds["total"]),
}
MEASURES_OF_NEW = tuple(name for name in MEASURES if name.startswith("new"))
"""Of clients that took no part: as they join, and with so many labelled windows of each class."""
