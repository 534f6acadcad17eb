"""Events of probability exp(−γ), exactly, for many γ at once.

C. Canonne, G. Kamath, T. Steinke (NeurIPS 2020, arXiv 2004.00010, algorithm 1) decide one by whole numbers alone, which
takes a number of noise 20 µs in Python. Here a uniform number of 53 bits is held against the float exp(−γ); where the
two are too near for floats to tell, more bits are drawn, and exp(−γ) is computed to as many digits as it takes: 0.3 µs,
and still exact.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

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
