"""When the store can't be used for a while, and how its failures are logged."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from enum import Enum

from sqlalchemy.exc import DBAPIError, OperationalError, TimeoutError

from aggregator_api.storage import disk


class Outage(Enum):
    """Why nothing can be stored or read now; the value is what a client is told."""

    UNREACHABLE = "the database does not answer"
    LOCKED = "the database is locked by another program"
    BUSY = "every connection to the database is in use"
    FULL = "the server's disk is full"


TEMPORARY = (Outage.UNREACHABLE, Outage.LOCKED, Outage.BUSY)
"""Those after which the same work can simply be done again; a full disk needs somebody."""

_LOCKED = ("database is locked", "database table is locked")
_UNREACHABLE = ("unable to open database file",)
_POSTGRES_LOCKED = ("55P03", "40P01")
_POSTGRES_AWAY = ("08", "57P")
"""Beginnings of its SQLSTATEs: the connection is broken; an operator stops the server, or it only starts."""
_POSTGRES_BUSY = "53300"


def outage_of(error: BaseException) -> Outage | None:
    """Return which outage an error tells of; None if it is something else."""
    if disk.is_full(error):
        return Outage.FULL
    if isinstance(error, TimeoutError):
        return Outage.BUSY
    if not isinstance(error, DBAPIError):
        return None
    state, text = getattr(error.orig, "sqlstate", None), str(error.orig)
    if state in _POSTGRES_LOCKED or any(words in text for words in _LOCKED):
        return Outage.LOCKED
    if state == _POSTGRES_BUSY:
        return Outage.BUSY
    if error.connection_invalidated or str(state).startswith(_POSTGRES_AWAY):
        return Outage.UNREACHABLE
    from_postgres = hasattr(error.orig, "sqlstate")
    nobody_there = isinstance(error, OperationalError) and from_postgres and state is None  # it could not even connect
    return Outage.UNREACHABLE if nobody_there or any(words in text for words in _UNREACHABLE) else None


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
