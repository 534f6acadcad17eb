"""Failures in the log: with a traceback what nobody expected, and in one line a second what a store's outage makes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from aggregator_api.storage.db.outages import Outage, outage_of

MIN_INTERVAL_S = 1.0
MAX_TEXT_CHARS = 300
"""Characters of a database's own words; it likes to repeat the statement."""


class FailureLog:
    """One for a process, so that however many threads notice an outage, one line a second tells of it."""

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[Outage, float] = {}
        self._left_out: dict[Outage, int] = {}

    def report(self, what: str, error: BaseException) -> Outage | None:
        """Log that something has failed, and return the outage that it failed of, if it is one."""
        outage = outage_of(error)
        if outage is None:
            self._log.error(what, exc_info=error)
            return None
        with self._lock:
            now = self._clock()
            if now - self._said.get(outage, -MIN_INTERVAL_S) < MIN_INTERVAL_S:
                self._left_out[outage] = self._left_out.get(outage, 0) + 1
                return outage
            self._said[outage] = now
            left_out = self._left_out.pop(outage, 0)
        more = f"; {left_out:,} such failures since the last line" if left_out else ""
        self._log.error("%s: %s (%s)%s", what, outage.value, _words(error), more)
        return outage


failures = FailureLog(logging.getLogger(__name__))


def _words(error: BaseException) -> str:
    text = str(getattr(error, "orig", None) or error)
    return " ".join(text.split())[:MAX_TEXT_CHARS]
