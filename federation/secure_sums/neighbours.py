"""Who masks with whom: a sparse graph that every device draws for itself from the signed list of members.

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
from collections.abc import Sequence
from typing import NamedTuple

SECURITY_BITS = 40
CORRECTNESS_BITS = 20
MIN_MEMBERS = 3
"""Of two, each would know the other's numbers from the sum."""
PER_MILLE = 1000


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
        raise ValueError(f"a secure sum needs {MIN_MEMBERS} members at least, not {members}")
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
    here = places[index]
    return tuple(sorted(order[(here + step) % members] for step in range(-(degree // 2), degree // 2 + 1) if step))


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
