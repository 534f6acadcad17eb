"""Shamir's secret sharing: any t shares recover a secret, t − 1 reveal nothing; polynomials over the field of 2³¹ − 1.

A. Shamir: How to Share a Secret, CACM 22, 1979. A secret of 32 bytes is eleven numbers of three bytes, each the value
at 0 of a random polynomial of degree t − 1; a holder's share are the values at its own point. The field is so small
that products of two of its numbers fit 64 bits, and numpy works on all numbers, holders and secrets at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]
Entropy = Callable[[int], bytes]
"""Returns so many bytes that nobody can guess: `secrets.token_bytes`."""

PRIME = (1 << 31) - 1
SECRET_BYTES = 32
_LIMB_BYTES, _LIMBS = 3, 11
SHARE_BYTES = 4 * _LIMBS


def split(secret: bytes, points: Numbers, threshold: int, entropy: Entropy) -> list[bytes]:
    """Return a share for each of the points (k,), which are different and from 1 on.

    Raises:
        ValueError: if the secret has not 32 bytes, a point is 0 or comes twice, or fewer than t points are there.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(points) or len(np.unique(points)) < len(points) or not points.all():
        raise ValueError(f"{len(points)} points, threshold {threshold}: expected t different points from 1 on")
    values = np.zeros((len(points), _LIMBS), np.uint64)
    for coefficients in (*_random(threshold - 1, entropy), _limbs(secret)):  # the highest power first
        values = _folded(values * points[:, None] + coefficients)
    return [(row % PRIME).astype("<u4").tobytes() for row in values]


def combine(points: Numbers, shares: list[list[bytes]]) -> list[bytes | None]:
    """Return the secrets of many owners, each of t shares at the points (owners, t); None for shares of no secret."""
    if not shares:
        return []
    flat = b"".join(share for own in shares for share in own)
    values = np.frombuffer(flat, "<u4").astype(np.uint64).reshape(*points.shape, _LIMBS)
    weights = _weights_at_zero(points)
    limbs = np.zeros((len(points), _LIMBS), np.uint64)
    for place in range(points.shape[1]):
        limbs = _folded(limbs + values[:, place] % PRIME * weights[:, place, None])
    return [_joined(row % PRIME) for row in limbs]


def _weights_at_zero(points: Numbers) -> Numbers:
    """Return Lagrange's weights at 0 for points (owners, t): λ_i = Π_{j ≠ i} x_j / (x_j − x_i)."""
    above, below = np.ones_like(points), np.ones_like(points)
    for place in range(points.shape[1]):
        other = points[:, place, None]
        itself = points == other
        above = _folded(above * np.where(itself, 1, other))
        below = _folded(below * np.where(itself, 1, other + PRIME - points))
    return _folded(above * _inverse(below))


def _inverse(values: Numbers) -> Numbers:
    """Return x^(p − 2), which is 1/x (Fermat)."""
    result, power = np.ones_like(values), values
    for bit in bin(PRIME - 2)[:1:-1]:
        if bit == "1":
            result = _folded(result * power)
        power = _folded(power * power)
    return result


def _folded(values: Numbers) -> Numbers:
    """Reduce numbers below 2⁶⁴ to below 2³¹ + 4, equal mod 2³¹ − 1: a sixth of the time of a division."""
    once = (values & PRIME) + (values >> 31)
    return (once & PRIME) + (once >> 31)


def _random(rows: int, entropy: Entropy) -> Numbers:
    """Draw uniform numbers of the field (rows, limbs)."""
    count, drawn = rows * _LIMBS, np.zeros(0, np.uint64)
    while len(drawn) < count:
        fresh = np.frombuffer(entropy(4 * (count - len(drawn) + 8)), "<u4").astype(np.uint64) & PRIME
        drawn = np.concatenate([drawn, fresh[fresh != PRIME]])
    return drawn[:count].reshape(rows, _LIMBS)


def _limbs(secret: bytes) -> Numbers:
    padded = secret.ljust(_LIMBS * _LIMB_BYTES, b"\0")
    numbers = [int.from_bytes(padded[at : at + _LIMB_BYTES], "little") for at in range(0, len(padded), _LIMB_BYTES)]
    return np.array(numbers, np.uint64)


def _joined(limbs: Numbers) -> bytes | None:
    if (limbs >> np.uint64(8 * _LIMB_BYTES)).any():
        return None
    whole = b"".join(int(limb).to_bytes(_LIMB_BYTES, "little") for limb in limbs)
    return None if any(whole[SECRET_BYTES:]) else whole[:SECRET_BYTES]
