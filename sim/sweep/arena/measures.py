"""What a table shows of a run: a name, a heading, and how it is read from the run's directory.

Scores are those of the round that the validation windows chose, in the task's primary metric, or in accuracy where a
measure says so, as most papers report; nothing is chosen by a test set.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import NamedTuple

from federation.methods import METHODS
from sim.data.holdout import OTHERWISE, OTHERWISE_SHOTS, SHOTS
from sim.results.run_directory import RunDirectory
from sim.scores.records import SelectedRound, Spread

LAST_ROUNDS = 10
"""Of these Qiao et al. 2023 report the mean."""
NEAR = 0.005
"""A run has converged, as far as tables say, in the first evaluated round with so little below its best accuracy."""


class Measure(NamedTuple):
    """A column."""

    heading: str
    is_score: bool
    """In percent where its metric is a share; else a cost, of which less is better."""
    read: Callable[[RunDirectory], float | None]
    metric: str = ""
    """Of a score; empty: the task's primary one."""


def chosen(run: RunDirectory) -> SelectedRound:
    """Return the scores of the round that claims may rest on."""
    found = run.final.selected(run.final.trusted)
    return found if found is not None else run.final.last


def _score(name: str, metric: str = "") -> Callable[[RunDirectory], float | None]:
    return lambda run: chosen(run).mean(name, metric or run.config.primary[0])


def _mean(run: RunDirectory, scores: Spread | None) -> float | None:
    return scores[run.config.primary[0]].mean if scores else None


def _new(shots: int) -> Callable[[RunDirectory], float | None]:
    def read(run: RunDirectory) -> float | None:
        new = run.final.new_clients
        return _mean(run, new.shots.get(shots)) if new else None

    return read


def _new_together(run: RunDirectory) -> float | None:
    new = run.final.new_clients
    return new.together.get(0, {}).get(run.config.primary[0]) if new else None


def _otherwise(way: str, shots: int) -> Callable[[RunDirectory], float | None]:
    def read(run: RunDirectory) -> float | None:
        new = run.final.new_clients
        return _mean(run, new.turned.get(way, {}).get(shots)) if new else None

    return read


def _new_unlabelled(run: RunDirectory) -> float | None:
    new = run.final.new_clients
    return _mean(run, new.unlabelled) if new else None


def _new_own_windows(run: RunDirectory) -> float | None:
    new = run.final.new_clients
    return _mean(run, new.own_windows.get("as_recorded")) if new else None


def _worst_tenth(run: RunDirectory) -> float | None:
    return run.worst_tenth(run.config.primary[0], run.final.trusted)


def _last_ten(run: RunDirectory) -> float | None:
    """Return the mean accuracy of the server's model over the last ten rounds; None unless each was evaluated."""
    last = run.rounds[-LAST_ROUNDS:]
    scores = [score for each in last if (score := each.mean("global", "accuracy")) is not None]
    return statistics.fmean(scores) if len(scores) == LAST_ROUNDS else None


def _convergence(run: RunDirectory) -> float | None:
    """Return the first evaluated round whose mean accuracy over clients is near the best of the run."""
    own = [(each.round, each.mean("personalization", "accuracy")) for each in run.rounds]
    scores = [(number, score) for number, score in own if score is not None]
    best = max((score for _, score in scores), default=None)
    return None if best is None else float(next(number for number, score in scores if score >= best - NEAR))


def _prototype_distance(run: RunDirectory) -> float | None:
    found = run.rounds[-1].diagnostics.get("prototype_distance")
    return None if found is None else float(found)


def _numbers_k(run: RunDirectory) -> float | None:
    """Return the thousands of numbers that all clients sent in a round."""
    if METHODS[run.config.method_name].traits.pools_data:
        return None
    sent = [each.numbers_up * (len(each.cohort) - len(each.lost)) for each in run.rounds if each.numbers_up is not None]
    return statistics.fmean(sent) / 1e3 if sent else None


def _upload_mb(run: RunDirectory) -> float | None:
    """Return what clients sent; nothing that compares with it where their data were pooled."""
    if METHODS[run.config.method_name].traits.pools_data:
        return None
    return run.final.bytes_up * len(run.rounds) / 1e6


def _windows(count: int) -> str:
    return f"{count} window{'s' * (count != 1)}"


MEASURES: Mapping[str, Measure] = {
    "own": Measure("own later windows", True, _score("personalization")),
    "others": Measure("others' windows", True, _score("generalization")),
    "server": Measure("server's model", True, _score("global")),
    "own_accuracy": Measure("own later windows, accuracy", True, _score("personalization", "accuracy"), "accuracy"),
    "server_accuracy": Measure("server's model, accuracy", True, _score("global", "accuracy"), "accuracy"),
    "server_accuracy_last_ten": Measure(
        "server's model, accuracy, mean of the last ten rounds", True, _last_ten, "accuracy"
    ),
    "worst_tenth": Measure("worst tenth", True, _worst_tenth),
    "new": Measure("new users", True, _new(0)),
    **{f"new_{k}": Measure(f"new, {_windows(k)}", True, _new(k)) for k in SHOTS if k},
    **{
        f"new_{way}" + f"_{k}" * bool(k): Measure(
            f"new, {words}" + f", {_windows(k)}" * bool(k), True, _otherwise(way, k)
        )
        for way, words in OTHERWISE.items()
        for k in OTHERWISE_SHOTS
    },
    "new_together": Measure("new users' windows together", True, _new_together),
    "new_unlabelled": Measure("new, no labels", True, _new_unlabelled),
    "new_own_windows": Measure("new, own windows without labels", True, _new_own_windows),
    "convergence_round": Measure("first round within half a point of the best", False, _convergence),
    "prototype_distance": Measure("distance between prototypes", False, _prototype_distance),
    "numbers_k": Measure("1,000 numbers up a round", False, _numbers_k),
    "upload_mb": Measure("MB up", False, _upload_mb),
    "seconds": Measure("seconds", False, lambda run: run.final.seconds["total"]),
}
MEASURES_OF_NEW = tuple(f"new_{k}" if k else "new" for k in SHOTS)
"""Of clients that took no part: as they join, and with so many labelled windows of each class."""
