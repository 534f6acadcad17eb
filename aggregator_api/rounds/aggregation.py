"""One aggregation: a round's updates streamed from their blobs into the method's server half."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from aggregator_api.devices.contributions import Contributed, SumChange
from aggregator_api.rounds.secure_rounds import Summed
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.broadcasts import Broadcasts
from aggregator_api.storage.db.models import Blob
from federation import wire
from federation.aggregation.present_sums import combined, needs_all
from federation.aggregation.screening import cap_examples
from federation.errors import ImpossibleSumError, RoundError
from federation.method import Method
from federation.privacy import differential_privacy
from federation.privacy.differential_privacy import aggregated
from federation.protocol.messages import UpdateManifest
from federation.records import Tree, Update
from federation.rounds.gains import Gains, added, plausible
from federation.rounds.server_round import discount
from federation.secure_sums.plausibility import OpenedSum, implausibility
from federation.secure_sums.summation import next_state, summed_gains

log = logging.getLogger(__name__)

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
    capped: Mapping[str, int] = MappingProxyType({})
    """Of a continuous federation: how many examples a device counts with that has more."""
    excluded: Mapping[str, str] = MappingProxyType({})
    """Of a continuous federation: why nothing of a device is used."""
    gains: Mapping[str, list[int]] = MappingProxyType({})
    """Of a federation with rounds: how much models gain over the shared one on the devices whose updates are used."""

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` needs, in another process."""
        tables = {"capped": dict(self.capped), "excluded": dict(self.excluded), "gains": dict(self.gains)}
        return {**self._asdict(), **tables}

    @classmethod
    def from_json(cls, made: Mapping[str, Any]) -> Aggregate:
        """Read what another process has made."""
        return cls(**{**made, "state": Blob(*made["state"]), "broadcast": Blob(*made["broadcast"])})


def aggregate(
    contract: Contract, blobs: BlobStore, state_sha256: str, updates: Iterable[StoredUpdate], *, is_newest: bool
) -> Aggregate:
    """Combine the updates, sorted by client, with the state; a few are in memory at a time where the method folds.

    They are streamed in order once all are here, and not folded as they come: the sum of float64 numbers depends on
    its order in the last bit, and the simulation's order is the clients'. is_newest: the state is the last version's.

    Raises:
        BlobError: if a blob is missing or damaged.
        FederationError: if the method cannot combine them.
    """
    method = contract.method
    kept = _read_kept(blobs, state_sha256)
    state, past = differential_privacy.taken_apart(kept)
    ordered = sorted(updates, key=lambda update: update.manifest.client)
    rounds = contract.plan.rounds
    # of all that is known of a round, only this seed must never leave it
    draw = np.random.Generator(np.random.PCG64(secrets.randbits(128)))
    new = aggregated(rounds, method, state, _stream(contract, blobs, ordered), draw, past if is_newest else {})
    multiplier = None if rounds.clip_norm is None else rounds.noise_multiplier
    stored = blobs.put(wire.encode(differential_privacy.put_together(*new)))
    broadcast = blobs.put(wire.encode(method.broadcast(new.state, "")))
    # a late update counts fully here: its device's gain is as good as another one's
    gains = added(update.manifest.gains for update in ordered)
    return Aggregate(stored, broadcast, multiplier, gains=gains)


def add_up(contract: Contract, blobs: BlobStore, state_sha256: str, summed: Summed) -> Aggregate:
    """Make the next state of the sum of a round's updates, which is all that is known of them.

    Raises:
        BlobError: if the state's blob is missing or damaged.
        ImpossibleSumError: if the devices cannot have added up to it.
        FederationError: if the sum is of nobody with examples, or the federation adds up nothing.
    """
    if contract.sum_layout is None:
        raise RoundError("this federation has no layout of what is added up; create another one")
    method, layout = contract.method, contract.sum_layout
    total = np.frombuffer(summed.total, f"<i{summed.bits // 8}").astype(np.int64)
    groups, clients = contract.plan.secure.groups, len(summed.devices)
    if why := implausibility(method, contract.plan.secure, OpenedSum(layout, total, clients)):
        raise ImpossibleSumError(f"the sum of {clients} devices is impossible: {why}")
    new = next_state(method, read_state(blobs, state_sha256), layout, total, summed.devices, groups)
    return _stored(method, blobs, new)._replace(gains=_gains_in(summed, summed_gains(layout, total, groups)))


def _gains_in(summed: Summed, gains: Gains) -> dict[str, list[int]]:
    """Drop what no reports add up to: a device may add any numbers, and the model is as good without them."""
    sound = plausible(gains, len(summed.devices))
    if unsound := sorted(gains.keys() - sound.keys()):
        log.warning("gains dropped candidates=%s", ",".join(unsound))
    return added([sound])


def publish(contract: Contract, blobs: BlobStore, state_sha256: str, contributed: Contributed) -> Aggregate:
    """Make the next state of a continuous federation, of the changes alone where that is enough; a few are in memory.

    Raises:
        BlobError: if a blob is missing or damaged.
        FederationError: if the method cannot combine them, or the rules leave too few.
    """
    method, plan, state = contract.sum_method, contract.plan, read_state(blobs, state_sha256)
    if method is None:
        raise RoundError(f"{contract.method.name} trains in rounds: there are no sums to publish")

    def read(change: SumChange) -> Update:
        return _update_of(contract, blobs, change)

    if not needs_all(method, plan.rounds, state):
        return _stored(method, blobs, method.aggregate(state, prefetch(contributed.changes, read)))
    parts = {part.client: part for part in contributed.present}
    found = combined(method, plan.rounds, plan.training.seed, state, list(parts), lambda client: read(parts[client]))
    capped, excluded = dict(found.screening.capped), dict(found.screening.excluded)
    return _stored(method, blobs, found.state)._replace(capped=capped, excluded=excluded)


def _update_of(contract: Contract, blobs: BlobStore, change: SumChange) -> Update:
    def tree(sha256: str | None) -> Tree | None:
        return None if sha256 is None else contract.decode_stored(blobs.read(sha256))

    return Update(change.client, change.examples, 0, tree(change.sha256) or {}, replaces=tree(change.replaces))


def _stored(method: Method, blobs: BlobStore, state: Tree) -> Aggregate:
    return Aggregate(blobs.put(wire.encode(state)), blobs.put(wire.encode(method.broadcast(state, ""))))


def read_state(blobs: BlobStore, sha256: str) -> Tree:
    """Read a server state that this server wrote, as methods know it: without what is kept of its noise."""
    return differential_privacy.taken_apart(_read_kept(blobs, sha256))[0]


def _read_kept(blobs: BlobStore, sha256: str) -> Tree:
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
