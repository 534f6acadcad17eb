"""Detects an unusable store (a full disk, an unavailable, locked or busy database), and locks its folder."""

from __future__ import annotations

import errno
import fcntl
import getpass
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import TracebackType

from sqlalchemy.exc import DBAPIError, OperationalError, TimeoutError

from aggregator_api.core.errors import ConfigError
from gaitway.files import private_folder

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SQLITE_FULL = "database or disk is full"
_POSTGRES_FULL = "53100"


def is_full(error: BaseException) -> bool:
    """Whether an error says that nothing more can be written."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    if isinstance(error, DBAPIError):
        return _SQLITE_FULL in str(error.orig) or getattr(error.orig, "sqlstate", "") == _POSTGRES_FULL
    return False


def require_folder(folder: Path, name: str) -> None:
    """Make a folder where there is none; `name` is what the operator calls it.

    Raises:
        ConfigError: if there is something else in its place, or this user may not write there.
    """
    try:
        private_folder(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"{name}, {folder}, is a file or lies below one; name a folder") from error
    except OSError as error:
        raise ConfigError(
            f"{name}, {folder}, cannot be made: {error.strerror}; make it, owned by the user {user()}, "
            "mount what is missing, or name another"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{name}, {folder}, cannot be written by the user {user()}; `chown` it, or name another")


def user() -> str:
    """Return the name of the user that this program runs as, or its number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the number may have no name
        return str(os.geteuid())


def shortage(folder: Path, needed: int) -> str:
    """Say that a folder's disk has fewer bytes left than are needed; empty if it has enough."""
    free = shutil.disk_usage(folder).free
    return "" if free >= needed else f"the server's disk has {free:,} bytes left, {needed:,} are needed; try later"


FILE = "server.lock"


class FolderLock:
    """Held inside a `with` block; the file stays behind and means nothing while nobody has locked it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._descriptor: int | None = None

    def __enter__(self) -> FolderLock:
        """Take the lock.

        Raises:
            ConfigError: if another program holds it, which is named by its process id; or if the file cannot be made.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise ConfigError(
                f"another program (process {holder}) works in {self.path.parent}; two servers on one folder would "
                "destroy each other's work: stop that one, or give this one another --data-dir"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let another program take it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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
    if is_full(error):
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
