"""Time for deadlines and waits: it runs evenly while the machine's clock is set, as by NTP after a start.

Deadlines are kept in SQL as Unix times, which a person reads and another process understands. So the rows of open
rounds are moved along when the clock is set, and a deadline that was written under another clock is brought into reach.
"""

from __future__ import annotations

import time

MIN_CLOCK_STEP_S = 1.0
"""The clock was set if it is off by more than this; what is less is slewed away, and does no harm."""


class SteadyClock:
    """Unix time as the machine had it at the start, and since then by the monotonic clock."""

    def __init__(self) -> None:
        self._ahead_s = time.time() - time.monotonic()
        self.followed_at: float | None = None
        """When (monotonic) the machine's clock was set last; None: never, as far as this process has seen."""

    def __call__(self) -> float:
        """Return the time in seconds since 1970."""
        return time.monotonic() + self._ahead_s

    def leap_s(self) -> float:
        """Return by how much the machine's clock was set forwards, or (below 0) back; 0 if it was not."""
        leap_s = time.time() - self()
        return leap_s if abs(leap_s) > MIN_CLOCK_STEP_S else 0.0

    def follow(self, leap_s: float) -> None:
        """Continue from the machine's time."""
        self._ahead_s += leap_s
        self.followed_at = time.monotonic()

    def was_stable_for(self, seconds: float) -> bool:
        """Whether the clock was not set in the last so many seconds, as far as this process has seen."""
        if self.leap_s():
            return False
        return self.followed_at is None or time.monotonic() - self.followed_at >= seconds
