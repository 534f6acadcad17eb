"""Files that are whole or not there, and files that only their owner may read.

A whole file takes a temporary neighbour, fsync, rename, and fsync of the folder. Raw motion, models, databases and keys
are their owner's alone, whatever the umask. Programs set the umask once (`keep_private`). What lasts is also made with
its mode, for those who use the packages as a library; SQLite gives a write-ahead log the mode of its database.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

BINARY = getattr(os, "O_BINARY", 0)  # without which Windows writes two bytes for a line feed


@contextmanager
def written_whole(path: Path, *, mode: int | None = None, replace: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing that becomes `path` if nothing is raised; a crash leaves the old file or the new one.

    `mode` are its permissions exactly, at no moment more; None: what the umask leaves of 0666.

    Raises:
        FileExistsError: without `replace`, if there is a file of that name, also one that another process just made.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY
    descriptor = os.open(temporary, flags, 0o666 if mode is None else mode & 0o600)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            if mode is not None and hasattr(os, "fchmod"):  # Windows has permissions of another kind
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, it fails where another process was faster
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_file(path: Path, data: bytes, *, mode: int | None = None, replace: bool = True) -> None:
    """Write a file whole or not at all; see `written_whole`."""
    with written_whole(path, mode=mode, replace=replace) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """Write JSON that people read, whole or not at all."""
    write_file(path, (json.dumps(value, indent=1) + "\n").encode())


def sync_folder(folder: Path) -> None:
    """Make what was renamed, made or deleted in a folder survive a power cut; Windows cannot be asked to."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
