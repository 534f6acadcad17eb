"""Devices that lie in secure sums: each changes what it uploads in one part, and signs that with its own key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edge_agent.storage.credentials import device_key
from edge_agent.supervisor import secure_sum
from federation.protocol.messages import SumPart
from federation.protocol.signing import unwrap, wrap
from federation.secure_sums.messages import EncryptedShares, MaskedVector, ToServer, digest, read, written
from federation.secure_sums.uploads import PARTS, packed, unpacked
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import FEDERATION, Parcel
from tests.live.summing_devices import SummingDevice

Change = Callable[[bytes, bytes], tuple[bytes, bytes]]
"""From the body and the numbers of a message to those that are sent."""


class Participant(SummingDevice):
    """A device of a server whose rounds follow one another while it answers."""

    def hear(self, server: Bench) -> secure_sum.SumAnswer:
        """Take what the server has said last."""
        with self.store() as store:
            return secure_sum.answer(store, self.invitation(server))


class HostileDevice(Participant):
    """Does all that the protocol asks for, but for one part."""

    part: SumPart = "shares"
    change: Change = staticmethod(lambda body, numbers: (body, numbers))

    def outbox(self) -> list[Parcel]:
        """Return what waits to be sent, the hostile part changed."""
        return [self._changed(one) if one.manifest.sum == self.part else one for one in super().outbox()]

    def _changed(self, parcel: Parcel) -> Parcel:
        message = unpacked(self.part, parcel.data)
        body, numbers = self.change(unwrap(message.payload).body, message.vector)
        signed = wrap(PARTS[self.part], FEDERATION, self.name, body, device_key(self.folder).sign)
        data = packed(ToServer(message.kind, signed, numbers))
        changes = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return Parcel(parcel.manifest.model_copy(update=changes), data, {})

    def lies(self, part: SumPart, change: Change) -> HostileDevice:
        """Begin to lie in this part."""
        self.part, self.change = part, change
        return self


def unopenable_shares(body: bytes, numbers: bytes) -> tuple[bytes, bytes]:
    """Deal texts that no neighbour can open."""
    dealt = read(EncryptedShares, body)
    return written(dealt.model_copy(update={"sealed": tuple(bytes(len(one)) for one in dealt.sealed)})), numbers


def no_keys(body: bytes, numbers: bytes) -> tuple[bytes, bytes]:
    """Send keys that cannot be read."""
    return body[:-1], numbers


def adding(amounts: dict[int, int], bits: int = 32) -> Change:
    """Add to some numbers of the vector, modulo the ring."""

    def change(body: bytes, numbers: bytes) -> tuple[bytes, bytes]:
        vector: NDArray[np.int64] = np.frombuffer(numbers, f"<u{bits // 8}").copy()
        for at, amount in amounts.items():
            vector[at] += np.array(amount % (1 << bits), vector.dtype)
        data = vector.tobytes()
        head = read(MaskedVector, body).model_copy(update={"sha256": digest(data)})
        return written(head), data

    return change
