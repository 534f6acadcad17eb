"""Broadcasts as blobs: writing each client's own, where a method has such (FeSEM, FedPAC), and reading them again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

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
