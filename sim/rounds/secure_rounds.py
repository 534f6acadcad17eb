"""A round's updates as one sum: through the real protocol of `federation.secure_sums`, or added in the clear.

Both give the server the same whole numbers, bit for bit; in the clear nothing is hidden, and nobody is too few.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from federation.errors import RoundError
from federation.plan import SecureSettings
from federation.privacy.discrete_gaussian import noisy_clients
from federation.records import Client, Tree, Update
from federation.secure_sums import server
from federation.secure_sums.in_memory import InMemorySum, added
from federation.secure_sums.membership import groups_of, membership
from federation.secure_sums.messages import SumDevice, SumRequest, VectorReady
from federation.secure_sums.server import ServerStage
from federation.secure_sums.summation import (
    SumLayout,
    clipped_share,
    encoded,
    layout_of,
    next_state,
    per_mille,
    privatized,
    vector_length,
)
from federation.seeds import seed_for
from federation.training.local_round import Setup


class SecureSum(NamedTuple):
    """A round's sum, whose updates are in it, and what a line of `rounds.jsonl` says of it."""

    total: NDArray[np.int64]
    clients: tuple[str, ...]
    facts: dict[str, Any]


@dataclass
class SecureRounds:
    """The devices of a simulation, each with an identity of its own."""

    setup: Setup
    settings: SecureSettings
    layout: SumLayout
    identities: dict[str, Ed25519PrivateKey] = field(default_factory=dict)

    @classmethod
    def of(cls, setup: Setup, initial: Client, settings: SecureSettings) -> SecureRounds:
        """Derive what the clients' numbers mean from the method and the model."""
        return cls(setup, settings, layout_of(setup.method, setup.training, initial, settings))

    def next_state(
        self, state: Tree, cohort: Sequence[str], updates: Sequence[Update], broadcasts: Mapping[str, Tree], number: int
    ) -> tuple[Tree, SecureSum]:
        """Return the server's next state, of the sum of a cohort's updates; who has none was lost with its vector.

        Raises:
            RoundError: if too few are left, in the protocol's words.
        """
        method, layout = self.setup.method, self.layout
        vectors = {
            update.client_id: encoded(method, layout, update, broadcasts[update.client_id], self.settings)
            for update in updates
        }
        facts = self._add_noise(vectors, len(cohort), number)
        if self.settings.mode == "clear":
            summed = SecureSum(self._added(cohort, vectors, number), tuple(sorted(vectors)), {})
        else:
            summed = self._masked(cohort, vectors, number)
        facts |= {**summed.facts, "numbers": layout.length, "cut_off": round(clipped_share(vectors, layout), 8)}
        new = next_state(method, state, layout, summed.total, summed.clients, self.settings.groups)
        return new, summed._replace(facts=facts)

    def _add_noise(self, vectors: dict[str, NDArray[np.int64]], cohort: int, number: int) -> dict[str, Any]:
        """Clip each client's numbers and add its share of the noise, drawn from the run's seed."""
        settings = self.settings
        if not settings.noise_multiplier:
            return {}
        clients = noisy_clients(settings, cohort // settings.groups)  # each group's sum has its noise by itself
        for name, vector in vectors.items():
            draw = Random(seed_for(self.setup.training.seed, "noise of a sum", name, number)).randbytes
            vectors[name] = privatized(self.setup.method, self.layout, vector, settings, clients, draw)
        return {"noisy_clients": clients}

    def _added(self, cohort: Sequence[str], vectors: Mapping[str, NDArray[np.int64]], number: int) -> NDArray[np.int64]:
        """Add in the clear what a masked sum has, by the same groups."""
        if self.settings.groups == 1:
            return added(vectors)
        names = sorted(cohort, key=_device_name)
        groups = groups_of(list(map(_device_name, names)), self.settings.groups, number)
        totals = np.zeros((self.settings.groups, self.layout.length), np.int64)
        for name, group in zip(names, groups, strict=True):
            if name in vectors:
                totals[group] += vectors[name]
        return totals.ravel()

    def _masked(self, cohort: Sequence[str], vectors: Mapping[str, NDArray[np.int64]], number: int) -> SecureSum:
        names = {_device_name(name): name for name in cohort}
        layout, nothing = self.layout, np.zeros(self.layout.length, np.int64)
        request = SumRequest(
            federation="simulation",
            instance="0" * 32,
            round=number,
            attempt=secrets.token_bytes(32),
            length=vector_length(layout, self.settings),
            groups=self.settings.groups,
            bits=layout.bits_for(len(cohort)),
            layout=layout.digest,
            min_members=self.settings.min_devices,
            colluding=per_mille(self.settings.colluding_share),
            lost=per_mille(self.settings.lost_share),
        )
        ready = {
            device: VectorReady(vectors.get(name, nothing), layout.bound, layout.digest)
            for device, name in names.items()
        }
        lost = {device: ServerStage.VECTORS for device, name in names.items() if name not in vectors}
        driver = InMemorySum({device: self._device(device) for device in names}, request, ready, lost)
        ended = driver.run()
        if ended.stage is ServerStage.FAILED:
            raise RoundError(f"the secure sum failed: {ended.reason}")
        clients = tuple(sorted(names[device] for device in server.included_devices(ended)))
        degree = membership(ended.request, ended.members).degree
        costs = [driver.costs[_device_name(name)] for name in clients]
        facts = {
            "bits": request.bits,
            "neighbours": degree.neighbours,
            "threshold": degree.threshold,
            "client_seconds": round(float(np.mean([cost.seconds for cost in costs])), 4),
            "server_seconds": round(driver.server_seconds, 4),
            "bytes_up": int(np.mean([cost.bytes_up for cost in costs])),
            "bytes_down": int(np.mean([cost.bytes_down for cost in costs])),
        }
        return SecureSum(server.result(ended), clients, facts)

    def _device(self, name: str) -> SumDevice:
        key = self.identities.setdefault(name, Ed25519PrivateKey.generate())
        return SumDevice(
            name,
            key.public_key().public_bytes_raw(),
            key.sign,
            colluding=per_mille(self.settings.colluding_share),
            min_members=self.settings.min_devices,
            groups=self.settings.groups,
        )


def _device_name(client: str) -> str:
    """Return a name that a message can hold: those of data sets have spaces and slashes."""
    return f"client-{hashlib.sha256(client.encode()).hexdigest()[:24]}"
