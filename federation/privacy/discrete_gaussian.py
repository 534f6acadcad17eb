"""Samples an exact discrete Gaussian, and accounts for the sum of many clients' noise.

C. Canonne, G. Kamath, T. Steinke: The Discrete Gaussian for Differential Privacy, NeurIPS 2020, arXiv 2004.00010: a
discrete Laplace is drawn and accepted (algorithms 2 and 3) by events whose probabilities are exact (`happens`,
algorithm 1), here for all numbers at once. P. Kairouz, Z. Liu, T. Steinke: The Distributed Discrete Gaussian Mechanism
for Federated Learning with Secure Aggregation, ICML 2021, arXiv 2102.06387: n clients each add noise of variance σ²,
and the sum is nearly one discrete Gaussian of variance n σ²; what is lost by 'nearly' (theorem 1) is less than any
float can hold for σ of 4 and more.

Neighbours differ by one client, whose vector is at most `clip` long (L2) in one and zero in the other.

They decide an event of probability exp(−γ) by whole numbers alone, which
takes a number of noise 20 µs in Python. Here a uniform number of 53 bits is held against the float exp(−γ); where the
two are too near for floats to tell, more bits are drawn, and exp(−γ) is computed to as many digits as it takes: 0.3 µs,
and still exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from federation.errors import SettingsError
from federation.plan import SecureSettings

MIN_DEVIATION = 4.0
"""Of one client's noise, in whole numbers: 10 n exp(−π² σ²) is below 10⁻⁶⁰ then, for as many clients as one likes."""

MAX_DEVIATION = 1 << 46
"""The same: beyond it a float does not hold each whole number that may come."""


def noise(length: int, variance: Fraction, draw: Draw) -> NDArray[np.int64]:
    """Return independent whole numbers (length,) with P(x) ∝ exp(−x² / 2σ²), for σ below 2⁴⁶ (algorithm 3).

    Raises:
        SettingsError: if σ is larger.
    """
    if variance >= MAX_DEVIATION**2:
        raise SettingsError(f"noise of a deviation of {math.sqrt(variance):.3g} whole numbers; less than 2⁴⁶ is drawn")
    scale, found = math.isqrt(math.floor(variance)) + 1, np.zeros(0, np.int64)
    while len(found) < length:
        values = _laplace(scale, length - len(found), draw)
        over = np.abs(np.abs(values) - float(variance / scale))

        def exactly(at: int, values: NDArray[np.int64] = values) -> Fraction:
            return (abs(int(values[at])) - variance / scale) ** 2 / (2 * variance)

        accepted = happens(over**2 / (2 * float(variance)), exactly, draw)
        found = np.concatenate([found, values[accepted]])
    return found


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


def _laplace(scale: int, count: int, draw: Draw) -> NDArray[np.int64]:
    """Draw at most `count` whole numbers with P(x) ∝ exp(−|x| / scale) (algorithm 2)."""
    rest = _uniform(scale, count, draw)
    rest = rest[happens(rest / scale, lambda at: Fraction(int(rest[at]), scale), draw)]
    whole, going_on = np.zeros(len(rest), np.int64), np.arange(len(rest))
    while len(going_on):
        going_on = going_on[happens(np.ones(len(going_on)), lambda _: Fraction(1), draw)]
        whole[going_on] += 1
    values, is_negative = rest + scale * whole, _uniform(2, len(rest), draw) == 1
    values = np.where(is_negative, -values, values)
    drawn: NDArray[np.int64] = values[~(is_negative & (values == 0))]
    return drawn


def _uniform(below: int, count: int, draw: Draw) -> NDArray[np.int64]:
    """Draw whole numbers from 0 on (count,), each as likely; below: at most 2⁶²."""
    bits, found = (below - 1).bit_length(), np.zeros(0, np.int64)
    while len(found) < count:
        drawn = words(count - len(found), draw) >> np.uint64(64 - bits) if bits else np.zeros(count, np.uint64)
        found = np.concatenate([found, drawn[drawn < below].astype(np.int64)])
    return found


Draw = Callable[[int], bytes]
"""So many random bytes: secret where they protect somebody (`secrets.token_bytes`), seeded in a simulation."""
NEAR = 2.0**-40
"""Of 1: more than a float's exp(−γ) can be off, of a γ with a few roundings."""
_BITS = 53


def happens(
    gamma: NDArray[np.float64], exactly: Callable[[int], Fraction], draw: Draw, near: float = NEAR
) -> NDArray[np.bool_]:
    """Decide events (n,) of probability exp(−γ): whether a uniform real number is below it.

    gamma: each γ ≥ 0 as a float. exactly(i): the i-th without rounding.
    """
    drawn = words(len(gamma), draw) >> np.uint64(64 - _BITS)
    chance = np.exp(-gamma)
    below = np.ldexp(drawn.astype(np.float64), -_BITS)  # the number lies between this and 2⁻⁵³ above
    happens: NDArray[np.bool_] = below < chance
    for at in np.flatnonzero(np.abs(below - chance) < near * chance + 2.0**-_BITS):
        happens[at] = is_below(int(drawn[at]), exactly(int(at)), draw)
    return happens


def is_below(drawn: int, gamma: Fraction, draw: Draw) -> bool:
    """Whether a uniform number that begins with these bits is below exp(−γ), with as many more as that takes."""
    bits, digits = _BITS, 40
    while True:
        drawn, bits, digits = (drawn << 64) | int(words(1, draw)[0]), bits + 64, digits + 40
        exact = Context(prec=digits)
        # quotient and exponential are rounded correctly; γ is at most some hundreds, so 10 digits less are certain
        chance = exact.exp(exact.minus(exact.divide(Decimal(gamma.numerator), Decimal(gamma.denominator))))
        numerator, denominator = chance.as_integer_ratio()
        scaled = (numerator << bits) // denominator
        doubt = 1 + scaled // 10 ** (digits - 10)
        if abs(drawn - scaled) > doubt:
            return drawn < scaled


def words(count: int, draw: Draw) -> NDArray[np.uint64]:
    """Draw uniform whole numbers of 64 bits (count,)."""
    return np.frombuffer(draw(8 * count), "<u8")
