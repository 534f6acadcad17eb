"""One cell made again and held against its summary: what a stranger does who does not believe a table."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sim.errors import SettingsError
from sim.sweep.arena.cells import pretrained_key
from sim.sweep.arena.measures import MEASURES
from sim.sweep.arena.summary import CellSummary, Summaries

SAME = 1e-6
"""Scores of the same machine and versions differ by no more; those of a network's training also by the same commit."""
ELSEWHERE = 0.02
"""Other machines, and other commits' engines, order float32 sums differently: two points are not more than that."""


class ScoreDifference(NamedTuple):
    """A measure that came out otherwise than its summary says."""

    measure: str
    before: float | None
    now: float | None


def draw_cell(known: Summaries, max_seconds: float, seed: int) -> str:
    """Draw one of the cells that took no longer on a CPU, and did not start from another one; linear ones first.

    Raises:
        SettingsError: if there is none.
    """
    cheap = sorted(
        key
        for key, each in known.items()
        if each.device == "cpu"
        and pretrained_key(each.arguments) is None
        and (each.measures.get("seconds") or max_seconds) < max_seconds
    )
    if not cheap:
        raise SettingsError(f"no summary is of a run of less than {max_seconds:g} s on a CPU; raise --max-seconds")
    return random.Random(seed).choice([key for key in cheap if _is_linear(known[key].arguments)] or cheap)


def _is_linear(arguments: Sequence[str]) -> bool:
    """Whether it is a linear model on hand-made features: a network's score of new users moved six points elsewhere."""
    return "har_features" in arguments


def differences(before: CellSummary, now: CellSummary) -> list[ScoreDifference]:
    """Return the scores that differ by more than another order of additions explains."""
    is_same = (before.hardware, before.versions) == (now.hardware, now.versions)
    if not _is_linear(before.arguments):
        is_same = is_same and before.commit == now.commit
    tolerance = SAME if is_same else ELSEWHERE
    pairs = _scores(before), _scores(now)
    found = (ScoreDifference(name, pairs[0].get(name), pairs[1].get(name)) for name in pairs[0])
    return [each for each in found if not _close(each.before, each.now, tolerance)]


def _scores(summary: CellSummary) -> Mapping[str, float | None]:
    return {name: value for name, value in summary.measures.items() if name in MEASURES and MEASURES[name].is_score}


def _close(before: float | None, now: float | None, tolerance: float) -> bool:
    if before is None or now is None:
        return before is now
    return abs(before - now) <= tolerance
