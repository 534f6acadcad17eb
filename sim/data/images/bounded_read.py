"""Reading no more than a file may hold, so that neither a false header nor a small archive fills the memory."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from typing import IO

from har_pipeline import SourceError

DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


def read_next(stream: IO[bytes], size: int, name: str) -> bytes:
    """Read the next `size` bytes of a (decompressed) stream; raises SourceError if it is damaged or ends before."""
    content = _read(stream, size, name)
    if len(content) != size:
        raise SourceError(f"{name} ends after {len(content):,} of {size:,} bytes; download it again")
    return content


def read_bounded(stream: IO[bytes], limit: int, name: str) -> bytes:
    """Read a stream to its end; raises SourceError if it is damaged or goes beyond `limit` bytes."""
    content = _read(stream, limit + 1, name)
    if len(content) > limit:
        raise SourceError(f"{name} holds more than {limit:,} bytes; that is no file of this data set")
    return content


def read_rest(stream: IO[bytes], size: int, name: str) -> bytes:
    """Read a stream that must end after `size` bytes more; raises SourceError if it does not."""
    return read_next(stream, size, name) + read_bounded(stream, 0, name)


def _read(stream: IO[bytes], size: int, name: str) -> bytes:
    try:
        return stream.read(size)
    except DAMAGED as error:
        raise SourceError(f"{name} cannot be read: {error}; download it again") from error
