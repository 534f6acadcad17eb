"""The device's files: whole or not there, and its owner's alone."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_agent.errors import DiskFullError
from gaitway import files
from gaitway.files import FILE, private_folder

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20


def write_file(path: Path, data: bytes) -> None:
    """Replace a file that is its owner's alone, and make its folder; a crash leaves the old content or the new."""
    private_folder(path.parent)
    files.write_file(path, data, mode=FILE)


def move_file(source: Path, target: Path) -> None:
    """Move a finished file on the same file system; afterwards it survives a power cut."""
    private_folder(target.parent)
    with source.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(source, target)
    files.sync_folder(target.parent)


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
        log.error("%s not saved: %s", what, error)
