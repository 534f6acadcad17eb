"""Checks of times: unset ones, an unused second clock, and overlapping stretches.

Overlapping stretches of one client must come from two people or two phones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from har_pipeline.description.keys import DATE
from har_pipeline.description.model import Description
from har_pipeline.description.text import RowBlock

UNSET_S = 60.0
"""Distance from its neighbors at which a time of 0 counts as unset."""
MIN_OFFSET_S, MAX_OFFSET_S = 0.02, 600.0
"""Minimum and maximum distance between two columns of times that are two sensors' clocks."""
SAME_PACE = 0.2
MIN_ROWS = 20


def unset_times(times_s: np.ndarray) -> np.ndarray:
    """Return which times (n,) are 0 although their neighbors are far from 0."""
    unset: np.ndarray = times_s == 0
    known = np.flatnonzero(np.isfinite(times_s) & ~unset)
    if not unset.any() or not len(known):
        return np.zeros(len(times_s), dtype=bool)
    after = np.searchsorted(known, np.flatnonzero(unset))
    near = [times_s[known[np.clip(at, 0, len(known) - 1)]] for at in (after - 1, after)]
    unset[unset] = np.abs(near).min(axis=0) > UNSET_S
    return unset


def other_clock(description: Description, block: RowBlock) -> str:
    """Report an unused column that runs like the times, at a small distance; "" if there isn't one."""
    if description.time is None or description.time.unit == DATE or len(block) < MIN_ROWS:
        return ""
    used = block.indices(description.all_columns())
    own = next(iter(block.indices([description.time.column])), None)
    times = np.empty(0) if own is None else _numbers(block, own)
    for column in range(block.frame.shape[1]):
        other = _numbers(block, column) if column not in used else np.empty(0)
        if not len(times) or len(other) != len(times) or not _runs_like(other, times):
            continue
        apart_s = float(np.median(other - times)) * description.time.seconds
        if MIN_OFFSET_S < abs(apart_s) < MAX_OFFSET_S:
            name = repr(block.header[column]) if block.header else str(column + 1)
            return (
                f"{block.name}: column {name} is a clock as well, {abs(apart_s):.3g} s "
                f"{'ahead of' if apart_s > 0 else 'behind'} {description.time.column!r}, by which both sensors are "
                "read; if it is the gyroscope's, name it: gyro.time"
            )
    return ""


def _numbers(block: RowBlock, column: int) -> np.ndarray:
    """Return a column of numbers (n,); none where it has words."""
    series = block.frame[column]
    return series.to_numpy(dtype=np.float64) if series.dtype.kind in "if" else np.empty(0)


def _runs_like(other: np.ndarray, times: np.ndarray) -> bool:
    """Whether a column grows as times do, and at their pace."""
    steps, own = np.diff(other), np.diff(times)
    pace = float(np.median(own))
    return bool(
        pace > 0 and (steps >= 0).mean() > 0.98 and abs(np.median(steps) / pace - 1) < SAME_PACE and np.ptp(steps) > 0
    )


RESTART_S = 1.0
"""A clock that jumps back by more was reset; by less, samples were late."""
CLOCK_S = 600.0
"""Clocks of a day or a device begin later than this; earlier ones began with a recording, and may overlap."""


class TimeSpan(NamedTuple):
    """The time span of one client's sensor samples, and their file."""

    client: str
    sensor: str
    begin_s: float
    end_s: float
    file: str


def restarts(times_s: np.ndarray, before_s: float) -> np.ndarray:
    """Return where in times (n,) a clock was set back, after a sample at before_s."""
    return np.flatnonzero(np.diff(times_s, prepend=before_s) < -RESTART_S)


def overlaps(spans: Iterable[TimeSpan]) -> Iterator[str]:
    """Say of each client in whose spans times overlap which files they are in."""
    latest: dict[tuple[str, str], TimeSpan] = {}
    pairs: dict[tuple[str, str], list[tuple[TimeSpan, TimeSpan]]] = {}
    for span in sorted(span for span in spans if span.begin_s > CLOCK_S):
        key = span.client, span.sensor
        before = latest.setdefault(key, span)
        if before is not span and span.begin_s < before.end_s - RESTART_S:
            pairs.setdefault(key, []).append((before, span))
        latest[key] = max(before, span, key=lambda candidate: candidate.end_s)
    for client, overlapping in {client: overlapping for (client, _), overlapping in pairs.items()}.items():
        yield _words(client, *overlapping[0], others=len(overlapping) - 1)


def _words(client: str, earlier: TimeSpan, other: TimeSpan, *, others: int) -> str:
    if earlier.file == other.file:
        where = f"in {earlier.file} two stretches were"
    else:
        first, second = sorted((earlier.file, other.file))
        where = f"{first} and {second} were"
    more = f", and so were {others} more" if others else ""
    when = f"{other.begin_s:.0f} to {min(earlier.end_s, other.end_s):.0f} s"
    what = f"client {client}: {where} recorded at the same time ({when}){more}"
    return f"{what}; if they are two people or two phones, distinguish them by client: a group of files, or a column"
