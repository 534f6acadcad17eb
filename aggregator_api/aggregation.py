"""One aggregation: a round's updates streamed from their blobs into the method's server half."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from aggregator_api.blobs import Blob, BlobStore
from aggregator_api.contract import Contract
from federation import wire
from federation.protocol.messages import UpdateManifest
from federation.records import Tree, Update
from federation.server_round import discount


class StoredUpdate(NamedTuple):
    """An accepted update, still in its blob."""

    manifest: UpdateManifest
    rounds_late: int


class Aggregate(NamedTuple):
    """The blobs of a round's result."""

    state: Blob
    broadcast: Blob


def aggregate(contract: Contract, blobs: BlobStore, state_sha256: str, updates: Iterable[StoredUpdate]) -> Aggregate:
    """Combine the updates, sorted by client, with the state; one update is in memory at a time where the method folds.

    Raises:
        BlobError: if a blob is missing or damaged.
        FederationError: if the method cannot combine them.
    """
    method = contract.method
    state = read_state(blobs, state_sha256)
    ordered = sorted(updates, key=lambda update: update.manifest.client)
    new = method.aggregate(state, _stream(contract, blobs, ordered))
    return Aggregate(blobs.put(wire.encode(new)), blobs.put(wire.encode(method.broadcast(new, ""))))


def read_state(blobs: BlobStore, sha256: str) -> Tree:
    """Read a server state that this server wrote."""
    data = blobs.read(sha256)
    return wire.decode(data, limit_bytes=len(data))


def _stream(contract: Contract, blobs: BlobStore, updates: Iterable[StoredUpdate]) -> Iterator[Update]:
    for manifest, rounds_late in updates:
        tensors = contract.decode(manifest, blobs.read(manifest.sha256))
        factor = discount(contract.plan.rounds, rounds_late)
        yield Update(manifest.client, manifest.examples, manifest.steps, tensors, factor)
