"""What both ends read off the request and the list of members: places, neighbours, and what keys are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from federation.errors import WireError
from federation.protocol.signing import Kind, to_sign, unwrap
from federation.secure_sums.masks import RingVector, derived, pair_key, stream
from federation.secure_sums.messages import (
    MAX_SIGNED_BYTES,
    SHARE_DIGEST_BYTES,
    ListedMember,
    MemberList,
    PublicKeys,
    SumRequest,
    digest,
    read,
)
from federation.secure_sums.neighbours import Degree, degree_for, groups_of, neighbours_of


@dataclass(frozen=True)
class Membership:
    """The list of members under one request."""

    request: SumRequest
    request_digest: bytes
    digest: bytes
    members: tuple[ListedMember, ...]
    _verified: dict[int, PublicKeys] = field(default_factory=dict, compare=False)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where each device stands in the list."""
        return {member.device: index for index, member in enumerate(self.members)}

    @cached_property
    def degree(self) -> Degree:
        """What the graph has for all."""
        return degree_for(len(self.members), self.request.colluding, self.request.lost)

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """In which group each member is."""
        return groups_of([member.device for member in self.members], self.request.groups, self.request.round)

    def in_its_group(self, index: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a member's numbers in its group's part of a vector (length,) of zeros."""
        found = np.zeros(self.request.length, np.int64)
        at = self.groups[index] * len(numbers)
        found[at : at + len(numbers)] = numbers
        return found

    def lacking(self, included: Iterable[int]) -> str:
        """Say that a group has too few of those included; empty if none has."""
        present = Counter(self.groups[index] for index in included)
        least, needed = min(present[group] for group in range(self.request.groups)), self.request.min_members
        return f"a group's sum would be of {least} devices, {needed} are needed" if least < needed else ""

    def neighbours(self, index: int) -> tuple[int, ...]:
        """Return a member's neighbours in rising order."""
        return neighbours_of(index, len(self.members), self.degree.neighbours, self.digest)

    def keys_of(self, index: int) -> PublicKeys:
        """Return a member's keys, whose signature is by the identity that the list has for it.

        Raises:
            WireError: if they are not.
        """
        if index in self._verified:
            return self._verified[index]
        member = self.members[index]
        body = verified(Kind.SUM_KEYS, self.request.federation, member.device, member.identity, member.keys)
        keys = read(PublicKeys, body, MAX_SIGNED_BYTES)
        if keys.device != member.device or keys.request != self.request_digest:
            raise WireError(f"the keys in the list for {member.device} are those of another device or sum")
        self._verified[index] = keys
        return keys

    def add_pair_mask(self, total: RingVector, private: X25519PrivateKey, own: int, other: int) -> None:
        """Add what a member adds for a neighbour: r where its place is lower, −r where it is higher."""
        low, high = sorted((own, other))
        key = pair_key(private, self.keys_of(other).mask_key, b"pair mask" + self.digest + _place(low) + _place(high))
        mask = stream(key, self.request.length, self.request.bits)
        if own == low:
            total += mask
        else:
            total -= mask

    def own_mask(self, seed: bytes, own: int) -> RingVector:
        """Return the mask that a member adds of its seed."""
        key = derived(seed, b"own mask" + self.digest + _place(own))
        return stream(key, self.request.length, self.request.bits)

    def channel_key(self, private: X25519PrivateKey, public: bytes, sender: int, receiver: int) -> bytes:
        """Return the key under which one member's shares for another are sealed."""
        return pair_key(private, public, self.channel(sender, receiver))

    def channel(self, sender: int, receiver: int) -> bytes:
        """Return what a sealed text is bound to."""
        return b"shares" + self.digest + _place(sender) + _place(receiver)


def _place(index: int) -> bytes:
    return index.to_bytes(4, "big")


@lru_cache(maxsize=4)
def membership(request: bytes, members: bytes) -> Membership:
    """Read the list of members of a request.

    Raises:
        WireError: if it is not one: of another request, not by rising name, with a device or an identity twice, or of
            too few.
    """
    sum_request, found = read(SumRequest, request), read(MemberList, members)
    if found.request != digest(request):
        raise WireError("the list of members is of another sum")
    names, identities = [one.device for one in found.members], {one.identity for one in found.members}
    if any(one >= other for one, other in pairwise(names)) or len(identities) < len(names):
        raise WireError("the list of members is not by rising name, or has a device twice")
    if len(names) < (needed := sum_request.min_members * sum_request.groups):
        raise WireError(f"the list has {len(names)} members, {needed} are needed")
    return Membership(sum_request, digest(request), digest(members), found.members)


def verified(kind: Kind, federation: str, device: str, identity: bytes, payload: bytes) -> bytes:
    """Return the body of a message that this device has signed.

    Raises:
        WireError: if it has not.
    """
    envelope = unwrap(payload)
    if envelope.signature is None or not signed(
        to_sign(kind, federation, device, envelope.body), envelope.signature, identity
    ):
        raise WireError(f"a message of {device} ({kind}) is not signed by its key")
    return envelope.body


def signed(text: bytes, signature: bytes, identity: bytes) -> bool:
    """Whether a signature is an identity's."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def seed_commitment(seed: bytes) -> bytes:
    """Return what a device publishes of its seed: it fits no other, and says nothing of 32 random bytes."""
    return digest(b"gaitway-secure-sums/1 seed", seed)


def share_digest(share: bytes) -> bytes:
    """Return what a dealer publishes of a share."""
    return digest(b"gaitway-secure-sums/1 share", share)[:SHARE_DIGEST_BYTES]
