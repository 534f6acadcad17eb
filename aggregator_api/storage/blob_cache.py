"""Blobs that many devices ask for in the same minutes, read and verified once, and then shared; in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from threading import Lock

from aggregator_api.storage.blobs import BlobStore

MAX_BLOB_BYTES = 8 << 20
MAX_CACHE_BYTES = 32 << 20
CHUNK_BYTES = 1 << 16
"""What one slow connection holds of a blob in its own buffer, and as much again."""


class BlobCache:
    """Keeps small blobs that were asked for last: at most `each` bytes of one, `total` of all."""

    def __init__(self, blobs: BlobStore, *, each: int = MAX_BLOB_BYTES, total: int = MAX_CACHE_BYTES) -> None:
        self._blobs, self._each, self._total = blobs, each, total
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, sha256: str) -> bytes | None:
        """Return a whole verified blob, or None if it is too large to be kept.

        Raises:
            BlobError: if it is missing or damaged.
        """
        with self._lock:
            if sha256 in self._kept:
                self._kept.move_to_end(sha256)
                return self._kept[sha256]
        if self._blobs.size(sha256) > self._each:
            return None
        data = self._blobs.read(sha256)
        with self._lock:
            self._kept[sha256] = data
            while sum(map(len, self._kept.values())) > self._total:
                self._kept.popitem(last=False)
        return data


async def in_pieces(data: bytes) -> AsyncIterator[bytes]:
    """Yield bytes as fast as the receiver takes them, so that a slow one holds little memory."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]
