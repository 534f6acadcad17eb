"""Derives what both sides need from the request and the list of members: places, neighbors, and contexts of keys.

Who masks with whom is a sparse graph that every device draws for itself from the signed list of members.
Bell et al. 2020, section 3: a Harary graph, which is a ring on which everybody is a neighbour of the k/2 before and
the k/2 after, on members in random order. The order follows from the digest of the list, which nobody knows before all
keys are in it. Degree k is the smallest for which there is a threshold t, which is then more than half of k if it can
be, such that of n members of whom a share γ works for the server
and a share δ is lost,

- security: n · P[X ≥ t] ≤ 2^−40, X ~ Hypergeometric(n − 1, γn, k): nobody has t neighbours that work for the server,
- security: n · C((γ + δ)n, k/2) / C(n − 1, k/2) ≤ 2^−40: no k/2 in a row are gone, so those who are left hang together,
- correctness: n · P[Y > k − t] ≤ 2^−20, Y ~ Hypergeometric(n − 1, δn, k): everybody's secrets have t holders left.

(lemmas 3.7, 3.9 and 3.11 there, without their closed bounds: these are sums of whole numbers, the same on every
machine.) Where no such k is below n − 1, all are neighbours of all, and t is more than half of them.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

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
    MIN_MEMBERS,
    PER_MILLE,
    SHARE_DIGEST_BYTES,
    ListedMember,
    MemberList,
    PublicKeys,
    SumRequest,
    digest,
    read,
)

SECURITY_BITS = 40
CORRECTNESS_BITS = 20


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
        return f"a group's sum would have {least} devices; {needed} are needed" if least < needed else ""

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
            raise WireError(f"the list's keys for {member.device} belong to another device or sum")
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
        raise WireError("the list of members belongs to another sum")
    names, identities = [member.device for member in found.members], {member.identity for member in found.members}
    if any(first >= second for first, second in pairwise(names)) or len(identities) < len(names):
        raise WireError("the list of members isn't sorted by name, or lists a device twice")
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
        raise WireError(f"a message from {device} ({kind}) isn't signed with its key")
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


class Degree(NamedTuple):
    """What the graph of a round has in common for all."""

    neighbours: int  # k
    threshold: int  # t: shares that give a secret back
    quorum: int  # members who must sign one list; two lists cannot have so many


@functools.lru_cache(maxsize=64)
def degree_for(members: int, colluding: int, lost: int) -> Degree:
    """Return the smallest degree for so many members, of whom per mille `colluding` and `lost`.

    Raises:
        ValueError: for fewer than three members.
    """
    if members < MIN_MEMBERS:
        raise ValueError(f"a secure sum needs at least {MIN_MEMBERS} members, not {members}")
    others, corrupt, gone = members - 1, members * colluding // PER_MILLE, members * lost // PER_MILLE
    # those who work for the server sign both lists, everybody else one
    quorum = (members + corrupt) // 2 + 1
    for k in range(4, others, 2):
        if not _hangs_together(members, corrupt + gone, k):
            continue
        threshold = _first_rare(members, _tail(others, corrupt, k), math.comb(others, k), SECURITY_BITS)
        lacking = _first_rare(members, _tail(others, gone, k), math.comb(others, k), CORRECTNESS_BITS)
        if 2 <= threshold <= k + 1 - lacking:
            return Degree(k, min(max(threshold, k // 2 + 1), k + 1 - lacking), quorum)
    return Degree(others, others // 2 + 1, quorum)


def _hangs_together(members: int, removed: int, k: int) -> bool:
    ways = members * math.comb(removed, k // 2) << SECURITY_BITS
    return ways <= math.comb(members - 1, k // 2)


def _tail(others: int, marked: int, k: int) -> list[int]:
    """Count, for each j up to k + 1, the ways to draw k of the others with j or more marked ones among them."""
    ways = [math.comb(marked, j) * math.comb(others - marked, k - j) for j in range(k + 1)]
    tail = [0]
    for count in reversed(ways):
        tail.append(tail[-1] + count)
    return tail[::-1]


def _first_rare(members: int, tail: list[int], draws: int, bits: int) -> int:
    """Return the smallest j for which members · P[j or more] ≤ 2^−bits."""
    return next(j for j, ways in enumerate(tail) if members * ways << bits <= draws)


def neighbours_of(index: int, members: int, degree: int, seed: bytes) -> tuple[int, ...]:
    """Return the neighbours of a member in rising order; members are counted from 0 as the list has them."""
    order, places = _ring(members, seed)
    if degree >= members - 1:
        return tuple(other for other in range(members) if other != index)
    place = places[index]
    return tuple(sorted(order[(place + step) % members] for step in range(-(degree // 2), degree // 2 + 1) if step))


def groups_of(devices: Sequence[str], groups: int, round_number: int) -> tuple[int, ...]:
    """Deal devices into groups whose sizes differ by one at most; return each one's, by their order here.

    It follows from names and round alone, so that a simulation repeats it, and is another one in each round.
    """

    def drawn(place: int) -> bytes:
        return hashlib.sha256(f"groups/{round_number}/{devices[place]}".encode()).digest()

    found = [0] * len(devices)
    for place, device in enumerate(sorted(range(len(devices)), key=drawn)):
        found[device] = place * groups // len(devices)
    return tuple(found)


@functools.lru_cache(maxsize=8)
def _ring(members: int, seed: bytes) -> tuple[list[int], list[int]]:
    """Return the members in the ring's order, and the place of each."""
    order = sorted(range(members), key=lambda member: hashlib.sha256(seed + member.to_bytes(4, "big")).digest())
    places = [0] * members
    for place, member in enumerate(order):
        places[member] = place
    return order, places
