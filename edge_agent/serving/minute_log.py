"""Adds up what the model at work recognizes, for the timeline of the day; only the classifier's thread calls it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from edge_agent.errors import StoreError
from edge_agent.storage.timeline import MINUTE_S, MinuteSum, add_minutes
from edge_agent.storage.window_store import FILE_NAME, WindowStore
from har_pipeline import Window

log = logging.getLogger(__name__)

KEEP_EVERY_S = 30.0
MAX_SUMS = 1000
"""That wait where the database cannot be written; more are forgotten."""


class MinuteLog:
    """Sums in memory, which are kept every half minute: a crash loses no more than that."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sums: dict[tuple[int, str], MinuteSum] = {}
        self._kept_at = time.monotonic()

    def add(self, windows: Sequence[Window], labels: Sequence[str], probabilities: Sequence[float]) -> None:
        """Add windows with what was recognized in each; no labels where there is no model."""
        for i, window in enumerate(windows):
            if window.x.ndim != 2 or not np.isfinite(window.x).all():  # an image, or broken
                continue
            key = int(window.start_s // MINUTE_S), labels[i] if labels else ""
            before = self._sums.get(key, MinuteSum(*key, 0, 0.0, 0.0))
            self._sums[key] = before._replace(
                windows=before.windows + 1,
                probability=before.probability + (float(probabilities[i]) if labels else 0.0),
                movement=before.movement + movement(window.x),
            )
        if time.monotonic() - self._kept_at >= KEEP_EVERY_S or len(self._sums) > MAX_SUMS:
            self.keep()

    def keep(self) -> None:
        """Write what waits; windows.sqlite is made by who collects, so before it there is nothing to write to."""
        self._kept_at = time.monotonic()
        if not self._sums or not (self._folder / FILE_NAME).is_file():
            return
        try:
            with closing(WindowStore(self._folder)) as store:
                add_minutes(store, self._sums.values())
        except StoreError as error:
            log.warning("timeline not kept: %s", error)
            if len(self._sums) <= MAX_SUMS:
                return  # tried again
        self._sums.clear()


def movement(x: np.ndarray) -> float:
    """Return the standard deviation of the acceleration's magnitude, m/s², of a window (n, 6)."""
    return float(np.linalg.norm(x[:, :3].astype(np.float64), axis=1).std())
