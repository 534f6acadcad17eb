"""Stretches of time of one client that overlap: nobody does two things at once, so they are two persons or phones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

RESTART_S = 1.0
"""A clock that goes back by more has been set anew; by less, samples came late."""
CLOCK_S = 600.0
"""Later than that begin clocks of a day or a device; earlier ones began with a recording, and may well overlap."""


class TimeSpan(NamedTuple):
    """From when to when one client's sensor gave samples, and in which file."""

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
    return f"{what}; are they two persons, or two phones? Tell them apart by client: a group of files, or a column"
