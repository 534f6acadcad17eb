"""Files that are whole or not there: temporary file, fsync, rename, fsync of the folder."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_agent.errors import DiskFullError
from federation.private_files import private_folder

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20


def write_file(path: Path, data: bytes) -> None:
    """Replace a file's content; a kill at any moment leaves the old or the new."""
    private_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    sync_folder(path.parent)


def move_file(source: Path, target: Path) -> None:
    """Move a finished file on the same file system; afterwards it survives a power cut."""
    private_folder(target.parent)
    with source.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(source, target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Hash a file block by block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def tolerate_full_disk(what: str) -> Iterator[None]:
    """Go on where a note cannot be kept because the disk is full; it is a note about what can be found out again."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, DiskFullError) and error.errno != errno.ENOSPC:
            raise
        log.error("%s is not noted: %s", what, error)
