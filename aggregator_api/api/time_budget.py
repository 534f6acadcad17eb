"""Processor time that one answer may spend on making what is remembered from then on."""

from __future__ import annotations

import time


class TimeBudget:
    """So many seconds of the thread that asks first; what does not fit is left out, and `is_spent` says so.

    One piece of work is always begun: whoever asks again gets on, piece by piece.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end: float | None = None
        self.is_spent = False

    def allows(self) -> bool:
        """Whether another piece may be made; asked before each."""
        now = time.thread_time()
        if self._end is None:
            self._end = now + self._seconds
            return True
        self.is_spent = self.is_spent or now >= self._end
        return not self.is_spent
