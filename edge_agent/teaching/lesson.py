"""One lesson without I/O: some seconds of an activity by the sensor's clock, which can be paused and resumed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from har_pipeline import Window

LESSON_S = 20.0
LOST_AFTER_S = 5.0
"""Without a window, after which the sensor is said to be silent: one comes every 1.3 s."""
STILL_ACCELERATION, STILL_ROTATION = 0.08, 0.03
"""Mean deviation of the axes, m/s² and rad/s, below which somebody hardly moves."""
GAP_S = 5.0
"""Between two windows, after which what came before and what comes are stretches of their own."""


class Lesson:
    """A lesson that runs. Times called `now` are of any steady clock; others are the windows' own.

    latest: the last window that came before. What overlaps it was measured before the person had begun.
    """

    def __init__(self, activity: str, window_s: float, now: float, latest: Window | None) -> None:
        self.activity, self.is_paused = activity, False
        self.spans: list[tuple[float, float]] = []
        self._window_s, self._heard_at, self._is_open = window_s, now, False
        self._latest = latest
        self._deviations: list[tuple[float, float]] = []

    @property
    def done_s(self) -> float:
        """Seconds of motion so far."""
        return sum(to_s - from_s for from_s, to_s in self.spans)

    @property
    def is_complete(self) -> bool:
        """Whether there is enough."""
        return self.done_s >= LESSON_S - 1e-6  # a sum of differences

    def take(self, windows: Sequence[Window], now: float) -> None:
        """Count windows that have just come, until there is enough; not while it is paused."""
        for window in windows:
            self._heard_at = now
            if not self.is_paused and not self.is_complete:
                self._count(window)

    def _count(self, window: Window) -> None:
        from_s, to_s = float(window.start_s), float(window.start_s) + self._window_s
        before_s = float(self._latest.start_s) if self._latest else from_s - 2 * self._window_s
        if from_s < before_s + self._window_s and before_s <= from_s:
            return
        if not self._is_open or not 0 <= to_s - self.spans[-1][1] <= GAP_S:
            self.spans.append((from_s, from_s))
            self._is_open = True
        first_s, last_s = self.spans[-1]
        self.spans[-1] = (first_s, min(max(last_s, to_s), last_s + LESSON_S - self.done_s))
        deviation = np.asarray(window.x, np.float64).std(0)
        self._deviations.append((float(deviation[:3].mean()), float(deviation[3:].mean())))

    def pause(self) -> None:
        """Count nothing until `resume`."""
        self.is_paused, self._is_open = True, False

    def resume(self, now: float, latest: Window | None) -> None:
        """Go on; `latest` as at the beginning."""
        self.is_paused, self._heard_at, self._latest = False, now, latest

    def warning(self, now: float) -> str:
        """Say what looks wrong; empty if nothing does."""
        if self.is_paused:
            return ""
        if now - self._heard_at > LOST_AFTER_S:
            return f"No motion has come for {now - self._heard_at:.0f} s: is the sensor on? The countdown waits for it."
        if self._deviations:
            acceleration, rotation = np.mean(self._deviations, axis=0)
            if acceleration < STILL_ACCELERATION and rotation < STILL_ROTATION:
                return "Hardly any motion so far: right for sitting, standing or lying, too little for anything else."
        return ""
