"""A disk that is full, or nearly: told in one way whoever notices it."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from sqlalchemy.exc import DBAPIError

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


def lacks(folder: Path, needed: int) -> str:
    """Say that a folder's disk has fewer bytes left than are needed; empty if it has enough."""
    free = shutil.disk_usage(folder).free
    return "" if free >= needed else f"the server's disk has {free:,} bytes left, {needed:,} are needed; try later"
