"""Events of probability exp(−γ), where floats can tell and where they cannot."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from federation.privacy.discrete_gaussian import NEAR, happens, is_below

GAMMAS = [Fraction(0), Fraction(1, 1000), Fraction(1, 3), Fraction(1), Fraction(7, 2)]


@pytest.mark.parametrize(("near", "count"), [(NEAR, 200_000), (10.0, 2_000)])
def test_they_happen_as_often_as_they_should(near: float, count: int) -> None:
    """Also where no float is believed."""
    for gamma in GAMMAS:
        found = happens(np.full(count, float(gamma)), lambda _, gamma=gamma: gamma, Random(5).randbytes, near).mean()
        chance = np.exp(-float(gamma))
        assert abs(found - chance) <= 5 * np.sqrt(chance * (1 - chance) / count)


def test_what_floats_cannot_tell_is_decided_by_more_digits() -> None:
    """A number whose first bits are those of exp(−γ) itself lies below it as the bits behind say."""
    with localcontext(Context(prec=80)):
        bits = int(Decimal(2) ** 181 * (Decimal(-1) / 3).exp())
    first, second, third = bits >> 128, (bits >> 64) & (2**64 - 1), bits & (2**64 - 1)
    for more, wanted in (((second - 5,), True), ((second + 5,), False), ((second, third - 9), True)):
        words = iter(more)
        assert is_below(first, Fraction(1, 3), lambda _n, words=words: next(words).to_bytes(8, "little")) is wanted
