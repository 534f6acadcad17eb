"""When the store cannot be used for a while: the database is away, locked or busy, or a disk is full."""

from __future__ import annotations

from enum import Enum

from sqlalchemy.exc import DBAPIError, OperationalError, TimeoutError

from aggregator_api.core import disk


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
