"""How the server takes the masks off a sum: secrets from shares, each held against what its owner has published.

Of everybody included the seed, of everybody lost the mask key; all of them, or none is taken off and the sum stays
what it was, random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from federation.errors import WireError
from federation.secure_sums import masks, shamir
from federation.secure_sums.membership import Membership, seed_commitment, share_digest
from federation.secure_sums.messages import EncryptedShares, OwnedShare, RevealedShares

Shares = dict[int, dict[int, bytes]]
"""By owner, then by holder."""


class Opening(NamedTuple):
    """What the devices have dealt and opened, by their places in the list."""

    dealers: Sequence[int]
    encrypted: Mapping[int, EncryptedShares]
    opened: Mapping[int, RevealedShares]


def unmasked(listed: Membership, masked: masks.RingVector, included: set[int], opening: Opening) -> masks.RingVector:
    """Return the sum of the vectors of those included.

    Raises:
        WireError: naming the first device whose secret cannot be pieced together, or is not the one that it published.
    """
    seed_shares, key_shares = _valid_shares(listed, included, opening)
    lost = [index for index in opening.dealers if index not in included]
    seeds = _secrets(listed, sorted(included), seed_shares, "seed")
    private = _secrets(listed, lost, key_shares, "mask key")
    total = masked.copy()
    for index, seed in seeds.items():
        if seed_commitment(seed) != listed.keys_of(index).seed_commitment:
            raise WireError(f"{listed.members[index].device} has dealt shares of another seed than its own")
        total -= listed.own_mask(seed, index)
    for index, key in private.items():
        if masks.public_of(key) != listed.keys_of(index).mask_key:
            raise WireError(f"{listed.members[index].device} has dealt shares of another key than its own")
        own = masks.private_key(key)
        for other in listed.neighbours(index):
            if other in included:
                listed.add_pair_mask(total, own, index, other)
    return total


def _valid_shares(listed: Membership, included: set[int], opening: Opening) -> tuple[Shares, Shares]:
    """Return the shares of seeds and of mask keys which are those that were dealt, of owners that they are due of."""
    places = {owner: {h: at for at, h in enumerate(listed.neighbours(owner))} for owner in opening.encrypted}
    digests = {owner: (own.mask_key_digests, own.seed_digests) for owner, own in opening.encrypted.items()}
    seeds: Shares = {}
    keys: Shares = {}

    def take(into: Shares, holder: int, shares: Sequence[OwnedShare], which: int, *, present: bool) -> None:
        for one in shares:
            at = places.get(one.owner, {}).get(holder)
            if at is None or (one.owner in included) is not present:
                continue
            if digests[one.owner][which][at] == share_digest(one.share):
                into.setdefault(one.owner, {})[holder] = one.share

    for holder, opened in opening.opened.items():
        take(seeds, holder, opened.seeds, 1, present=True)
        take(keys, holder, opened.mask_keys, 0, present=False)
    return seeds, keys


def _secrets(listed: Membership, owners: Sequence[int], shares: Shares, what: str) -> dict[int, bytes]:
    """Piece the owners' secrets together.

    Raises:
        WireError: naming the first one of whom too few shares came, or whose shares are of nothing.
    """
    threshold = listed.degree.threshold
    chosen = [sorted(shares.get(owner, {}).items())[:threshold] for owner in owners]
    for owner, own in zip(owners, chosen, strict=True):
        if len(own) < threshold:
            raise WireError(
                f"{len(own)} shares of the {what} of {listed.members[owner].device} came, {threshold} are needed"
            )
    points = np.array([[holder + 1 for holder, _ in own] for own in chosen], np.uint64)
    found = shamir.combine(points, [[share for _, share in own] for own in chosen])
    for owner, secret in zip(owners, found, strict=True):
        if secret is None:
            raise WireError(f"{listed.members[owner].device} has dealt shares of nothing for its {what}")
    return {owner: secret for owner, secret in zip(owners, found, strict=True) if secret is not None}
