"""One aggregation: a round's updates streamed from their blobs into the method's server half."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from aggregator_api.db.models import Blob
from aggregator_api.devices.contributions import SumChange
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.broadcasts import Broadcasts
from aggregator_api.updates.contract import Contract
from federation import wire
from federation.aggregation.screening import cap_examples
from federation.privacy.differential_privacy import privatized
from federation.protocol.messages import UpdateManifest
from federation.records import Tree, Update
from federation.rounds.server_round import discount

Name = TypeVar("Name")
Thing = TypeVar("Thing")

PREFETCH = 2
"""How many updates are read and decoded while the one before them is at work."""


class StoredUpdate(NamedTuple):
    """An accepted update, still in its blob."""

    manifest: UpdateManifest
    rounds_late: int
    counted_examples: int | None = None
    """What it counts with, where it claims more."""


class Aggregate(NamedTuple):
    """The blobs of a round's result."""

    state: Blob
    broadcast: Blob
    noise_multiplier: float | None = None
    """Of the noise in it, where changes were clipped."""


def aggregate(contract: Contract, blobs: BlobStore, state_sha256: str, updates: Iterable[StoredUpdate]) -> Aggregate:
    """Combine the updates, sorted by client, with the state; a few are in memory at a time where the method folds.

    They are streamed in order once all are here, and not folded as they come: the sum of float64 numbers depends on
    its order in the last bit, and the simulation's order is the clients'.

    Raises:
        BlobError: if a blob is missing or damaged.
        FederationError: if the method cannot combine them.
    """
    method = contract.method
    state = read_state(blobs, state_sha256)
    ordered = sorted(updates, key=lambda update: update.manifest.client)
    rounds = contract.plan.rounds
    # of all that is known of a round, only this seed must never leave it
    noise = np.random.Generator(np.random.PCG64(secrets.randbits(128)))
    new = method.aggregate(state, privatized(rounds, method, state, _stream(contract, blobs, ordered), noise))
    multiplier = None if rounds.clip_norm is None else rounds.noise_multiplier
    return Aggregate(blobs.put(wire.encode(new)), blobs.put(wire.encode(method.broadcast(new, ""))), multiplier)


def publish(contract: Contract, blobs: BlobStore, state_sha256: str, changes: Iterable[SumChange]) -> Aggregate:
    """Bring the changes of a continuous federation into the newest state; a few are in memory at a time.

    Raises:
        BlobError: if a blob is missing or damaged.
        FederationError: if the method cannot combine them.
    """

    def tree(sha256: str | None) -> Tree | None:
        return None if sha256 is None else contract.decode_stored(blobs.read(sha256))

    def read(change: SumChange) -> Update:
        return Update(change.client, change.examples, 0, tree(change.sha256) or {}, replaces=tree(change.replaces))

    method = contract.method
    new = method.aggregate(read_state(blobs, state_sha256), prefetch(changes, read))
    return Aggregate(blobs.put(wire.encode(new)), blobs.put(wire.encode(method.broadcast(new, ""))))


def read_state(blobs: BlobStore, sha256: str) -> Tree:
    """Read a server state that this server wrote."""
    data = blobs.read(sha256)
    return wire.decode(data, limit_bytes=len(data))


def _stream(contract: Contract, blobs: BlobStore, updates: Iterable[StoredUpdate]) -> Iterable[Update]:
    broadcasts = Broadcasts(blobs)

    def read(stored: StoredUpdate) -> Update:
        manifest = stored.manifest
        tensors = contract.decode(manifest, blobs.read(manifest.sha256), broadcasts.read)
        factor = discount(contract.plan.rounds, stored.rounds_late)
        update = Update(manifest.client, manifest.examples, manifest.steps, tensors, factor)
        return cap_examples(update, stored.counted_examples, contract.method.upload_groups)

    return prefetch(updates, read)


def prefetch(names: Iterable[Name], read: Callable[[Name], Thing]) -> Iterator[Thing]:
    """Yield what `read` makes of each name, in order; it runs on another thread, at most `PREFETCH` things early."""
    left = iter(names)
    with ThreadPoolExecutor(1, "prefetch") as executor:
        coming: deque[Future[Thing]] = deque()
        try:
            while True:
                while len(coming) < PREFETCH and (name := next(left, None)) is not None:
                    coming.append(executor.submit(read, name))
                if not coming:
                    return
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()
