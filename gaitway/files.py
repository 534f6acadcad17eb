"""Files that are whole or not there: a temporary neighbour, fsync, rename, fsync of the folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

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


def sync_folder(folder: Path) -> None:
    """Make what was renamed, made or deleted in a folder survive a power cut; Windows cannot be asked to."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
