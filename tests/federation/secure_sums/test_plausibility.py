"""Sums that were opened are held against what so many clients can add up to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from federation.aggregation import ridge
from federation.methods import method_from_json
from federation.plan import SecureSettings
from federation.privacy.discrete_gaussian import noisy_devices, share_of
from federation.records import Tree
from federation.secure_sums.plausibility import OpenedSum, implausibility
from federation.secure_sums.summation import Segment, SumLayout

CLIENTS, CLASSES, FEATURES, CLIP = 6, 3, 12, 4.0
SECURE = SecureSettings(mode="masked")
FEDAVG = method_from_json({"name": "fedavg"})
MEANS = SumLayout((Segment("params/w", (4,), 1024, 1 << 24), Segment("weight", (), 1, 4096)))


def means_of(weights: list[int], change: float, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).uniform(-change, change, (len(weights), 4))
    rows = [[*np.rint(row * weight * 1024), weight] for row, weight in zip(drawn, weights, strict=True)]
    return np.sum(rows, axis=0).astype(np.int64)


def judged(numbers: np.ndarray, clients: int = CLIENTS) -> str:
    return implausibility(FEDAVG, SECURE, OpenedSum(MEANS, numbers, clients))


@pytest.mark.parametrize("seed", range(5))
def test_sums_of_changes_within_the_plan_are_possible(seed: int) -> None:
    assert judged(means_of([1, 7, 40, 4096, 0, 3], 4.0, seed)) == ""


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        ([1 << 28, 0, 0, 0, 0], "params/w adds up to"),
        ([0, 0, 0, 0, 6 * 4096], "weight adds up to"),
        ([0, 0, 0, 0, -61], "expected a count of 0 or more"),
        ([60 * 4 * 1024 * 2, 0, 0, 0, 0], "beyond 4 times its weight"),
    ],
)
def test_what_no_clients_can_add_up_to_is_named(added: list[int], reason: str) -> None:
    assert reason in judged(means_of([10] * 6, 1.0) + np.array(added))


# ---- sums of features


def client_sums(seed: int, examples: int = 40) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(examples, FEATURES, generator=generator).clamp(-CLIP, CLIP)
    classes = torch.randint(0, CLASSES, (examples,), generator=generator)
    one = torch.cat([features, torch.ones(examples, 1)], 1).double()
    one_hot = torch.nn.functional.one_hot(classes, CLASSES).double()
    steps = torch.round(one * ridge.FEATURE_STEPS)
    gram = torch.einsum("mc,mi,mj->cij", one_hot, steps, steps)
    return ridge.travelling(ridge.RidgeSums(one_hot.sum(0), gram, torch.einsum("mc,mi->ci", one_hot, steps)))


def total(seeds: range) -> Tree:
    return ridge.total_of([client_sums(seed) for seed in seeds])


def test_honest_sums_of_many_clients_are_possible_and_so_is_what_is_left_of_them() -> None:
    sums = total(range(CLIENTS))
    assert ridge.total_implausibility(sums, CLIENTS, CLIP) == ""
    left = client_sums(2)
    rest = {name: value - left[name].long() for name, value in sums.items()}
    assert ridge.total_implausibility(rest, CLIENTS - 1, CLIP) == ""


@pytest.mark.parametrize(
    ("name", "at", "amount", "reason"),
    [
        ("gram", 0, 1 << 50, "reach"),
        ("gram", 5, 1 << 24, "not positive semidefinite"),
        ("gram", 0, -(1 << 26), "below 0"),
        ("gram", -1, 1 << 18, "in one place but"),
        ("moment", (0, 0), 1 << 24, "above"),
        ("moment", (-1, 1), -(1 << 22), "weight of"),
    ],
)
def test_impossible_sums_of_features_are_named(name: str, at: object, amount: int, reason: str) -> None:
    sums = total(range(CLIENTS))
    sums[name][at] += amount  # type: ignore[index]
    assert reason in ridge.total_implausibility(sums, CLIENTS, CLIP)


def test_honest_noise_makes_sums_indefinite_and_is_no_offence() -> None:
    """Of 50 clients with the least noise that the plan allows, and of many times as much."""
    for multiplier in (0.5, 20.0):
        settings = SecureSettings(mode="masked", clip_norm=2.0**17, noise_multiplier=multiplier)
        share = float(share_of(multiplier, settings.clip_norm or 0, noisy_devices(settings)))
        deviation = (share * 50) ** 0.5
        sums = total(range(50))
        generator = torch.Generator().manual_seed(7)
        noisy = {
            name: value
            + torch.round(torch.randn(value.shape, generator=generator, dtype=torch.float64) * deviation).long()
            for name, value in sums.items()
        }
        assert ridge.total_implausibility(noisy, 50, CLIP) != ""  # without knowing of the noise
        assert ridge.total_implausibility(noisy, 50, CLIP, deviation) == ""
        noisy["gram"][0] += 1 << 50
        assert ridge.total_implausibility(noisy, 50, CLIP, deviation) != ""


def test_a_sum_of_features_counts_its_clients() -> None:
    method = method_from_json({"name": "analytic"})
    added: Tree = {**total(range(4)), "clients": torch.tensor(4)}
    assert method.sum_implausibility(added, 4, 0.0) == ""
    assert "it counts 4 clients, but 3 have added to it" in method.sum_implausibility(added, 3, 0.0)
    assert "it counts -4 clients" in method.sum_implausibility({**added, "clients": torch.tensor(-4)}, 4, 0.0)
