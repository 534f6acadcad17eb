"""Removes the masks from a sum: recovers secrets from shares, each verified against its owner's published data.

Of everybody included the seed, of everybody lost the mask key; all of them, or none is taken off and the sum stays
what it was, random numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from federation.errors import WireError
from federation.secure_sums import masks, shamir
from federation.secure_sums.membership import Membership, seed_commitment, share_digest
from federation.secure_sums.messages import PER_MILLE, EncryptedShares, PublicKeys, RevealedShares

Shares = dict[int, dict[int, bytes]]
"""By owner, then by holder."""


class Opening(NamedTuple):
    """What the devices have dealt and opened, by their places in the list."""

    dealers: Sequence[int]
    encrypted: Mapping[int, EncryptedShares]
    opened: Mapping[int, RevealedShares]


class UnmaskingError(WireError):
    """A sum can't be opened. `culprits` are at fault, with reasons; of `suspects` one is, in places of the list."""

    def __init__(self, reason: str, culprits: Mapping[int, str], suspects: Collection[int] = ()) -> None:
        super().__init__(reason)
        self.culprits, self.suspects = dict(culprits), frozenset(suspects)


def unmasked(listed: Membership, masked: masks.RingVector, included: set[int], opening: Opening) -> masks.RingVector:
    """Return the sum of the vectors of those included.

    Raises:
        UnmaskingError: naming the first device whose secret cannot be pieced together, or is not the one that it
            published, and everybody who is to blame.
    """
    valid = _valid_shares(listed, included, opening)
    lost = [index for index in opening.dealers if index not in included]
    seeds = _pieced(listed, sorted(included), valid.seeds, "seed", _is_seed)
    private = _pieced(listed, lost, valid.mask_keys, "mask key", _is_mask_key)
    if (lacking := {**seeds.lacking, **private.lacking}) or seeds.wrong or private.wrong:
        wrong = {**seeds.wrong, **private.wrong}
        blamed = blame(valid.disputes, _liars(listed)) if lacking else Blame({}, frozenset())
        first = next(iter({**seeds.lacking, **seeds.wrong, **private.lacking, **private.wrong}.values()))
        raise UnmaskingError(first, {**blamed.culprits, **wrong}, blamed.suspects - wrong.keys())
    total = masked.copy()
    for index, seed in seeds.secrets.items():
        total -= listed.own_mask(seed, index)
    for index, key in private.secrets.items():
        own = masks.private_key(key)
        for other in listed.neighbours(index):
            if other in included:
                listed.add_pair_mask(total, own, index, other)
    return total


def _is_seed(keys: PublicKeys, secret: bytes) -> bool:
    return seed_commitment(secret) == keys.seed_commitment


def _is_mask_key(keys: PublicKeys, secret: bytes) -> bool:
    return masks.public_of(secret) == keys.mask_key


class _Valid(NamedTuple):
    """Shares which are those that were dealt, and the pairs (dealer, holder) of whom one must be at fault."""

    seeds: Shares
    mask_keys: Shares
    disputes: frozenset[tuple[int, int]]


def _valid_shares(listed: Membership, included: set[int], opening: Opening) -> _Valid:
    """Hold the shares of seeds and of mask keys against what their dealers signed.

    A holder that answers without a dealer's share, or with another one, has a dispute with that dealer: either the
    holder keeps the share back, or the dealer has sealed something else for it.
    """
    seeds: Shares = {}
    keys: Shares = {}
    disputes = set()
    places = {owner: {other: at for at, other in enumerate(listed.neighbours(owner))} for owner in opening.dealers}
    for holder, opened in opening.opened.items():
        shares = {True: {seed.owner: seed.share for seed in opened.seeds}}
        shares[False] = {key.owner: key.share for key in opened.mask_keys}
        for owner in listed.neighbours(holder):
            if owner not in places:
                continue
            is_present, own = owner in included, opening.encrypted[owner]
            digests = own.seed_digests if is_present else own.mask_key_digests
            share = shares[is_present].get(owner)
            if share is not None and digests[places[owner][holder]] == share_digest(share):
                (seeds if is_present else keys).setdefault(owner, {})[holder] = share
            else:
                disputes.add((owner, holder))
    return _Valid(seeds, keys, frozenset(disputes))


class _Pieced(NamedTuple):
    """The owners' secrets; of whom too few shares came, and whose secrets are not what they published, with reasons."""

    secrets: dict[int, bytes]
    lacking: dict[int, str]
    wrong: dict[int, str]


def _pieced(
    listed: Membership, owners: Sequence[int], shares: Shares, what: str, is_right: Callable[[PublicKeys, bytes], bool]
) -> _Pieced:
    threshold, pieced = listed.degree.threshold, _Pieced({}, {}, {})
    chosen = {owner: sorted(shares.get(owner, {}).items())[:threshold] for owner in owners}
    for owner in owners:
        if (count := len(chosen[owner])) < threshold:
            del chosen[owner]
            name = listed.members[owner].device
            pieced.lacking[owner] = f"{count} shares of the {what} of {name} came, {threshold} are needed"
    points = np.array([[holder + 1 for holder, _ in own] for own in chosen.values()], np.uint64)
    found = shamir.combine(points, [[share for _, share in own] for own in chosen.values()]) if chosen else []
    for owner, secret in zip(chosen, found, strict=True):
        dealt = f"{listed.members[owner].device} has dealt shares of"
        if secret is None:
            pieced.wrong[owner] = f"{dealt} nothing for its {what}"
        elif not is_right(listed.keys_of(owner), secret):
            pieced.wrong[owner] = f"{dealt} another {what.removeprefix('mask ')} than its own"
        else:
            pieced.secrets[owner] = secret
    return pieced


class Blame(NamedTuple):
    """Who is at fault, with reasons, and of whom it is open."""

    culprits: dict[int, str]
    suspects: frozenset[int]


def _liars(listed: Membership) -> int:
    """Return how many members may lie: those that may work for the server, and one in any case."""
    return max(1, len(listed.members) * listed.request.colluding // PER_MILLE)


def blame(disputes: Collection[tuple[int, int]], liars: int) -> Blame:
    """Say who of dealers and holders that contradict each other is at fault, if at most so many are.

    One of each pair is. So a device that more others contradict than can lie is one of them; the others may have told
    the truth, and of those who remain with fewer contradictions it can't be said.
    """
    left, culprits = {frozenset(pair) for pair in disputes}, dict[int, str]()
    while left and len(culprits) < liars:
        counts = Counter(index for pair in left for index in pair)
        index, count = max(counts.items(), key=lambda item: (item[1], -item[0]))
        if count <= liars - len(culprits):
            break
        dealt = sum(dealer == index for dealer, _ in disputes)
        culprits[index] = (
            f"{dealt} of its neighbours could not open the shares that it dealt"
            if dealt >= count
            else f"it did not open the shares of {count} of its neighbours"
        )
        left = {pair for pair in left if index not in pair}
    return Blame(culprits, frozenset(index for pair in left for index in pair))
