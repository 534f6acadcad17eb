"""Models and broadcasts as blobs: written for each client, and verified before they are sent to devices."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from aggregator_api.core.errors import BlobError
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db.models import Blob
from federation import wire
from federation.method import Method
from federation.records import Tree
from federation.records.tree import flatten

CACHE_SIZE = 4
"""Decoded broadcasts that a reader keeps: one is enough where all clients get the same."""


class Broadcasts:
    """Reads broadcasts from their blobs and keeps the latest; for one thread."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._kept: OrderedDict[str, Tree] = OrderedDict()

    def read(self, sha256: str) -> Tree:
        """Return a broadcast, which nobody may write into.

        Raises:
            BlobError: if its blob is missing or damaged.
        """
        if sha256 in self._kept:
            self._kept.move_to_end(sha256)
            return self._kept[sha256]
        data = self._blobs.read(sha256)
        tree = self._kept[sha256] = wire.decode(data, limit_bytes=len(data))
        while len(self._kept) > CACHE_SIZE:
            self._kept.popitem(last=False)
        return tree


def write_broadcasts(method: Method, blobs: BlobStore, state: Tree, clients: Iterable[str]) -> dict[str, Blob]:
    """Store every client's broadcast; those that are equal are one blob, so FeSEM writes as many as it has centres."""
    own = {id(value) for value in flatten(state).values()}
    written: dict[tuple[tuple[str, int], ...], Blob] = {}
    given = {}
    for client in clients:
        tree = method.broadcast(state, client)
        parts = tuple((name, id(value)) for name, value in flatten(tree).items())
        # made of the state's own tensors alone, which live as long as this loop, it is known without its bytes
        known = all(part in own for _, part in parts)
        blob = written.get(parts) if known else None
        given[client] = blob or blobs.put(wire.encode(tree))
        if known:
            written[parts] = given[client]
    return given


MAX_BLOB_BYTES = 8 << 20
MAX_CACHE_BYTES = 32 << 20
CHUNK_BYTES = 1 << 16
"""What one slow connection holds of a blob in its own buffer, and as much again."""


class BlobCache:
    """Keeps small blobs that were asked for last: at most `largest` bytes of one, `total` of all."""

    def __init__(self, blobs: BlobStore, *, largest: int = MAX_BLOB_BYTES, total: int = MAX_CACHE_BYTES) -> None:
        self._blobs, self._largest, self._total = blobs, largest, total
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
        if self._blobs.size(sha256) > self._largest:
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


class Downloads:
    """Reads blobs for whoever asks for them over REST."""

    def __init__(self, blobs: BlobStore, cache: BlobCache, report_damage: Callable[[str, str], None]) -> None:
        """Put the parts together; `report_damage` is told the sha256 of a missing or damaged blob, and the reason."""
        self._blobs = blobs
        self._cache = cache
        self._report_damage = report_damage

    def size(self, sha256: str) -> int:
        """Return how many bytes a blob has.

        Raises:
            BlobError: if it is missing.
        """
        with self._reported(sha256):
            return self._blobs.size(sha256)

    def pieces(self, sha256: str, start: int, stop: int) -> AsyncIterator[bytes] | Iterator[bytes]:
        """Return the bytes from `start` to before `stop`.

        A large blob that is sent whole is verified meanwhile, and cut short if it is damaged; of a part of it only the
        receiver knows the rest.

        Raises:
            BlobError: if it is missing, or damaged and small.
        """
        with self._reported(sha256):
            whole = self._cache.get(sha256)
            if whole is not None:
                return in_pieces(whole[start:stop])
            if stop - start < self._blobs.size(sha256):
                return self._blobs.part(sha256, start, stop)
        return self._verified(sha256)

    def _verified(self, sha256: str) -> Iterator[bytes]:
        with self._reported(sha256):
            yield from self._blobs.pieces(sha256)

    @contextmanager
    def _reported(self, sha256: str) -> Iterator[None]:
        try:
            yield
        except BlobError as error:
            self._report_damage(sha256, str(error))
            raise
