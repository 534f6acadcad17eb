"""The disk under the server: whether it is full, whether a folder can be used, and the lock on the data folder."""

from __future__ import annotations

import errno
import fcntl
import getpass
import os
import shutil
from pathlib import Path
from types import TracebackType

from sqlalchemy.exc import DBAPIError

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
