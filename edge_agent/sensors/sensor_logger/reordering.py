"""Samples of one sensor that may still be preceded by others; and accelerometer samples that wait for gravity."""

from __future__ import annotations

import numpy as np

from edge_agent.sensors.sensor_logger.message import Samples

NEAR_S = 0.1
"""Gravity further away than this from a sample is not that sample's: as long as a gap that breaks windows."""


class Waiting:
    """times_s (n,) and values (n, 3), in any order until they are taken."""

    def __init__(self) -> None:
        self.times_s = np.empty(0)
        self.values = np.empty((0, 3))

    def add(self, samples: Samples, horizon: float) -> int:
        """Take samples that are not before the horizon; returns how many were."""
        on_time = samples.times_s >= horizon
        self.times_s = np.concatenate([self.times_s, samples.times_s[on_time]])
        self.values = np.concatenate([self.values, samples.values[on_time]])
        return int(len(on_time) - on_time.sum())

    def take(self, horizon: float) -> Samples:
        """Return, in order of time, what lies before the horizon, and forget it."""
        final = self.times_s < horizon
        found = Samples(self.times_s[final], self.values[final])
        self.times_s, self.values = self.times_s[~final], self.values[~final]
        return _sorted(found)

    def final(self, horizon: float) -> Samples:
        """Return, in order of time, what lies before the horizon, and keep it."""
        final = self.times_s < horizon
        return _sorted(Samples(self.times_s[final], self.values[final]))

    def forget(self, before_s: float) -> None:
        """Forget what lies before a time."""
        kept = self.times_s >= before_s
        self.times_s, self.values = self.times_s[kept], self.values[kept]


def paired(acc: Waiting, gravity: Waiting, horizon: float, patience_s: float) -> tuple[Samples, int]:
    """Take accelerometer samples whose gravity is final: their sum, and how many had to go without.

    Both neighbours of a sample must be final, else another order of the same messages would give other numbers.
    """
    known = gravity.final(horizon)
    last = float(known.times_s[-1]) if len(known.times_s) else -np.inf
    over = horizon == np.inf
    ready = acc.take(np.inf if over else np.nextafter(last, np.inf))
    lost = 0
    if not over:
        lost = len(acc.take(horizon - patience_s).times_s)  # gravity was switched off, or its messages were lost
    if not len(known.times_s):
        return Samples(np.empty(0), np.empty((0, 3))), lost + len(ready.times_s)
    near = _distance(ready.times_s, known.times_s) <= NEAR_S
    times_s, values = ready.times_s[near], ready.values[near]
    there = np.stack([np.interp(times_s, known.times_s, known.values[:, axis]) for axis in range(3)], axis=1)
    gravity.forget(last)  # the last one is the left neighbour of what comes next
    return Samples(times_s, values + there), lost + int(len(near) - near.sum())


def _distance(times_s: np.ndarray, others_s: np.ndarray) -> np.ndarray:
    right = np.clip(np.searchsorted(others_s, times_s), 0, len(others_s) - 1)
    left = np.clip(right - 1, 0, len(others_s) - 1)
    distance: np.ndarray = np.minimum(np.abs(others_s[right] - times_s), np.abs(times_s - others_s[left]))
    return distance


def _sorted(samples: Samples) -> Samples:
    order = np.argsort(samples.times_s, kind="stable")
    return Samples(samples.times_s[order], samples.values[order])
