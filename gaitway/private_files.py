"""Files and folders that only their owner may read, whatever the umask: raw motion, models, databases, keys.

Programs set the umask once (`keep_private`). What lasts is also made with its mode, for those who use the packages as
a library; SQLite gives a write-ahead log the mode of its database.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FILE, FOLDER = 0o600, 0o700
UMASK = 0o077
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private() -> None:
    """Let this process, and those that it starts, make nothing that others can read."""
    os.umask(UMASK)


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner alone; one that is there stays as it is."""
    if path.is_dir():
        return
    private_folder(path.parent)
    path.mkdir(mode=FOLDER, exist_ok=True)


def private_file(path: Path) -> None:
    """Make an empty file for its owner alone; one that is there stays as it is.

    It is not even opened: closing a SQLite database's file would drop every lock that this process holds on it.
    """
    with suppress(FileExistsError):
        os.close(opener(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def opener(path: str, flags: int) -> int:
    """Open a file, for `open(…, opener=opener)`; a new one is its owner's alone."""
    return os.open(path, flags, FILE)


def make_private(folder: Path, names: Iterable[str]) -> int:
    """Take every right of others from a folder, and from what is in it under these names (patterns), and below.

    Returns how many had any. Other things in the folder, links, and what belongs to another user are left as they are.
    """
    return _tighten(folder) + sum(_tighten_all(path) for name in names for path in folder.glob(name))


def _tighten_all(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return _tighten(path)
    changed = 0
    for parent, _, files in os.walk(path):
        changed += _tighten(Path(parent)) + sum(_tighten(Path(parent, name)) for name in files)
    return changed


def _tighten(path: Path) -> bool:
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) or not found.st_mode & _OTHERS or not _is_own(found):
            return False
        path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
    except FileNotFoundError:  # another thread was faster
        return False
    return True


def _is_own(found: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and found.st_uid == os.geteuid()  # Windows has no such numbers, nor modes to tighten
