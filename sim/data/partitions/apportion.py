"""Dividing whole things in given proportions, by the largest remainders (Hamilton's method)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]


def apportion(total: int, weights: npt.ArrayLike, at_least: int = 0) -> Whole:
    """Divide `total` in proportion to weights (n,) ≥ 0 into whole numbers (n,) that sum to it.

    Each differs from its exact quota by less than one; equal remainders are served from the front. Where all weights
    vanish nothing is divided. Every positive weight first gets `at_least`, if that many there are.
    """
    shares = np.asarray(weights, dtype=np.float64)
    holders = shares > 0
    if not holders.any():
        return np.zeros(len(shares), dtype=np.int64)
    floor = at_least * holders.astype(np.int64) * (at_least * int(holders.sum()) <= total)
    quota = (total - int(floor.sum())) * (shares / shares.sum())
    whole = np.floor(quota).astype(np.int64)
    missing = total - int(floor.sum()) - int(whole.sum())
    # only holders are served: rounding must not hand anything to a weight of zero
    remainder = np.where(holders, quota - whole, -1.0)
    whole[np.argsort(-remainder, kind="stable")[:missing]] += 1
    return np.asarray(whole + floor, dtype=np.int64)


def thinned(sizes: Whole, examples: int | None) -> Whole:
    """Lessen class sizes (C,) to `examples` in all, in their proportions; None leaves them."""
    return sizes if examples is None or examples >= sizes.sum() else apportion(examples, sizes)
