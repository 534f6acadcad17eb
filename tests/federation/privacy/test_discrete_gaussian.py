"""Discrete Gaussian noise against its probabilities, and what of a client's numbers it hides."""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from random import Random

import numpy as np
import pytest
import torch

from federation.aggregation import ridge
from federation.aggregation.ridge_numpy import Damping
from federation.errors import SettingsError
from federation.methods.analytic import Analytic
from federation.plan import RoundSettings, SecureSettings
from federation.privacy import discrete_gaussian
from federation.privacy.accounting import epsilon_of_discrete, spent
from federation.privacy.discrete_gaussian import NEAR, happens, is_below
from federation.secure_sums.summation import Segment, SumLayout, check_secure, privatized


def test_it_is_drawn_with_the_probabilities_that_define_it() -> None:
    variance, count = Fraction(13, 4), 20_000
    drawn = discrete_gaussian.noise(count, variance, Random(3).randbytes)
    values = np.arange(-6, 7)
    weights = np.exp(-(values**2) / (2 * float(variance)))
    weights /= np.exp(-(np.arange(-60, 61) ** 2) / (2 * float(variance))).sum()
    found = np.array([(drawn == value).sum() for value in values])
    chi_square = float(((found - count * weights) ** 2 / (count * weights)).sum())
    assert chi_square < 37  # 13 degrees of freedom at most: beyond it once in 2,000
    assert (drawn == discrete_gaussian.noise(count, variance, Random(3).randbytes)).all()


def test_a_wider_one_than_floats_hold_is_refused() -> None:
    with pytest.raises(SettingsError, match="less than 2⁴⁶"):
        discrete_gaussian.noise(1, Fraction(2**92), Random(5).randbytes)


def test_epsilon_is_that_of_the_gaussian_of_the_same_concentration() -> None:
    """ρ-zCDP gives ε ≤ ρ + 2 √(ρ ln 1/δ) (Bun and Steinke 2016, proposition 1.3)."""
    multiplier, delta = 1.5, 1e-5
    rho = 1 / (2 * multiplier**2)
    bound = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert 0.8 * bound < epsilon_of_discrete(spent(multiplier), delta) < bound
    assert epsilon_of_discrete(spent(0.0), delta) == math.inf


def test_a_client_is_clipped_has_its_share_of_the_noise_and_its_count_stays() -> None:
    layout = SumLayout(
        (
            Segment("gram", (3,), 1, 1 << 32),
            Segment("moment", (2, 2), 1, 1 << 32),
            Segment("clients", (), 1, 9),
        )
    )
    vector = np.array([30_000, 0, 0, 0, -40_000, 0, 0, 1], np.int64)
    assert np.linalg.norm(discrete_gaussian.clipped(vector[:-1], 500.0)) <= 500.0
    settings = SecureSettings(mode="masked", clip_norm=500.0, noise_multiplier=2.0)
    clients = discrete_gaussian.noisy_clients(settings, 10)
    assert clients == 6  # a fifth may be lost, and a fifth work for the server
    made = [privatized(Analytic(), layout, vector, settings, clients, Random(seed).randbytes) for seed in range(300)]
    assert {int(one[-1]) for one in made} == {1}
    around = np.array(made)[:, :-1] - np.array([300, 0, 0, 0, -400, 0, 0])
    deviation = 2.0 * 500.0 / math.sqrt(clients)
    assert around.std() == pytest.approx(deviation, rel=0.05)
    assert abs(around.mean()) < 4 * deviation / math.sqrt(around.size)
    plain = SecureSettings(mode="masked")
    assert privatized(Analytic(), layout, vector, plain, clients, Random(0).randbytes) is vector


def test_noise_that_protects_nothing_is_refused_in_words() -> None:
    rounds = RoundSettings(rounds=1, norm_factor=None, max_weight_ratio=None)
    noisy = SecureSettings(mode="clear", clip_norm=500.0, noise_multiplier=2.0)
    check_secure(Analytic(), rounds, noisy)
    with pytest.raises(SettingsError, match="without a bound, no noise is enough"):
        check_secure(Analytic(), rounds, noisy.model_copy(update={"clip_norm": None}))
    with pytest.raises(SettingsError, match=r"raise secure\.clip_norm"):
        discrete_gaussian.share_of(1.0, 10.0, 100)


def test_a_floor_keeps_noisy_sums_solvable() -> None:
    """Noise of deviation σ in a symmetric matrix moves its eigenvalues by about 2 σ √d."""
    size, deviation = 20, 5.0
    draw = torch.Generator().manual_seed(0)
    upper = deviation * ridge.SUM_STEPS * torch.randn(size * (size + 1) // 2, generator=draw, dtype=torch.float64)
    sums = {"gram": upper.long(), "moment": torch.ones(size, 2).long()}
    nothing = {name: torch.zeros_like(value) for name, value in sums.items()}
    with pytest.raises(RuntimeError):
        ridge.solve(sums, nothing, torch.tensor(0.0), Damping(1e-2))
    damping = Damping(1e-2, 2.2 * deviation * size**0.5)
    for sign in (1, -1):  # whether or not noise has made the trace negative
        sums["gram"] *= sign
        weight, _ = ridge.solve(sums, nothing, torch.tensor(0.0), damping)
        assert torch.isfinite(weight).all()


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
