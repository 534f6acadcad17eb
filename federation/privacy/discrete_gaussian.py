"""Whole numbers of a discrete Gaussian, exactly, and the account of those that many clients have added.

C. Canonne, G. Kamath, T. Steinke: The Discrete Gaussian for Differential Privacy, NeurIPS 2020, arXiv 2004.00010:
algorithms 1 to 3, which need uniform whole numbers and no floating point. P. Kairouz, Z. Liu, T. Steinke: The
Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation, ICML 2021, arXiv 2102.06387: n
clients each add noise of variance σ², and the sum is nearly one discrete Gaussian of variance n σ²; what is lost by
'nearly' (theorem 1) is less than any float can hold for σ of 4 and more.

Neighbours differ by one client, whose vector is at most `clip` long (L2) in one and zero in the other.
"""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import numpy as np
from numpy.typing import NDArray

from federation.errors import SettingsError
from federation.plan import SecureSettings

MIN_DEVIATION = 4.0
"""Of one client's noise, in whole numbers: 10 n exp(−π² σ²) is below 10⁻⁶⁰ then, for as many clients as one likes."""


def noise(length: int, variance: Fraction, draw: Random) -> NDArray[np.int64]:
    """Return independent whole numbers (length,) with P(x) ∝ exp(−x² / 2σ²).

    draw: a generator that is secret where it protects somebody, `random.SystemRandom` on a device; seeded in a
    simulation.
    """
    return np.fromiter((_gaussian(variance, draw) for _ in range(length)), np.int64, length)


def clipped(vector: NDArray[np.int64], norm: float) -> NDArray[np.int64]:
    """Return whole numbers in the vector's direction whose L2 norm is at most `norm`; rounding is towards zero."""
    length = math.sqrt(sum(int(value) ** 2 for value in vector.tolist()))
    if length <= norm:
        return vector
    scaled: NDArray[np.int64] = np.trunc(vector * (norm / length) * (1 - 1e-12)).astype(np.int64)
    return scaled


def share_of(multiplier: float, norm: float, clients: int) -> Fraction:
    """Return the variance of one client's noise, where so many together have a deviation of multiplier · norm.

    Raises:
        SettingsError: if it is too little for the sum of many to be a discrete Gaussian.
    """
    variance = Fraction(multiplier) ** 2 * Fraction(norm) ** 2 / clients
    if variance < MIN_DEVIATION**2:
        raise SettingsError(
            f"noise of {clients} clients: each would have a deviation of {math.sqrt(variance):.2g} whole numbers, at "
            f"least {MIN_DEVIATION:g} are needed; raise secure.clip_norm or secure.noise_multiplier"
        )
    return variance


def noisy_clients(settings: SecureSettings, cohort: int) -> int:
    """Return how many of a cohort add their noise for certain: those neither lost nor working for the server."""
    return max(1, cohort - math.ceil(cohort * (settings.colluding_share + settings.lost_share)))


def noisy_devices(settings: SecureSettings) -> int:
    """Return how many devices of any live sum add their noise for certain.

    A server could say that a sum has more members than it has, so that each adds less: devices go by the plan's
    `min_devices` alone.
    """
    return noisy_clients(settings, settings.min_devices)


def _gaussian(variance: Fraction, draw: Random) -> int:
    """Draw one number, of a discrete Laplace that is accepted by exp(−(|y| − σ²/t)² / 2σ²) (algorithm 3)."""
    scale = math.isqrt(math.floor(variance)) + 1
    top, bottom = variance.numerator, variance.denominator
    while True:
        value = _laplace(scale, draw)
        # (|y| − σ²/t)² / 2σ² as one fraction: (|y| t b − a)² / (2 a b t²), σ² = a / b
        over = (abs(value) * scale * bottom - top) ** 2
        if _is_below_exponential(over, 2 * top * bottom * scale**2, draw):
            return value


def _laplace(scale: int, draw: Random) -> int:
    """Draw a whole number with P(x) ∝ exp(−|x| / scale) (algorithm 2)."""
    while True:
        rest = draw.randrange(scale)
        if not _is_below_unit_exponential(rest, scale, draw):
            continue
        whole = 0
        while _is_below_unit_exponential(1, 1, draw):
            whole += 1
        value, is_negative = rest + scale * whole, draw.randrange(2)
        if value or not is_negative:
            return -value if is_negative else value


def _is_below_exponential(top: int, bottom: int, draw: Random) -> bool:
    """Whether an event of probability exp(−top / bottom) happens (algorithm 1)."""
    while top > bottom:
        if not _is_below_unit_exponential(1, 1, draw):
            return False
        top -= bottom
    return _is_below_unit_exponential(top, bottom, draw)


def _is_below_unit_exponential(top: int, bottom: int, draw: Random) -> bool:
    """The same for a fraction of at most 1: the first k at which an event of probability top / (k bottom) fails."""
    k = 1
    while draw.randrange(bottom * k) < top:
        k += 1
    return k % 2 == 1
