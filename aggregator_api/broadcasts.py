"""What each client of a round gets, as blobs, where a method sends clients different things (FeSEM, FedPAC)."""

from __future__ import annotations

from collections.abc import Iterable

from aggregator_api.blobs import Blob, BlobStore
from federation import wire
from federation.method import Method
from federation.records import Tree
from federation.tree import flatten


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
