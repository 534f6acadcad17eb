"""Ridge regression without torch is that with torch: the bits of sums, heads to 1e-9; and personal classes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from federation.aggregation import ridge, ridge_numpy
from federation.aggregation.ridge_numpy import Damping, FixedSums, sums_of, travelling
from federation.errors import UpdateError
from federation.tasks.task import LabelledFeatures

CLIP, RIDGE = 4.0, 1e-2


def windows(seed: int, count: int = 300, width: int = 40, classes: int = 6) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, count)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    features = random.normal(size=(count, width)) + 2 * centres[y]
    return features.astype(np.float32), y


def by_torch(features: Any, y: Any, classes: int) -> dict[str, torch.Tensor]:
    sums = ridge.empty_ridge_sums(classes, features.shape[1], torch.zeros(1))
    labelled = LabelledFeatures(torch.tensor(features), torch.tensor(y), torch.ones(len(y)))
    return ridge.travelling(ridge.added(sums, labelled, CLIP))


def shared_sums(width: int, classes: int = 6) -> tuple[dict[str, torch.Tensor], FixedSums]:
    total = ridge.total_of([by_torch(*windows(seed, width=width, classes=classes), classes) for seed in (7, 8, 9)])
    return total, FixedSums(total["gram"].numpy(), total["moment"].numpy())


@pytest.mark.parametrize(
    ("seed", "count", "width", "classes"), [(0, 300, 40, 6), (1, 1, 3, 2), (2, 977, 100, 24), (3, 0, 5, 4)]
)
def test_sums_have_the_same_bits(seed: int, count: int, width: int, classes: int) -> None:
    features, y = windows(seed, count, width, classes)
    expected = by_torch(features, y, classes)
    found = travelling(sums_of(features, y, classes, CLIP))
    assert found.gram.dtype == found.moment.dtype == np.int32
    assert np.array_equal(found.gram, expected["gram"].numpy())
    assert np.array_equal(found.moment, expected["moment"].numpy())


def test_sums_are_those_of_the_definition() -> None:
    features, y = windows(4, width=3, classes=2)
    rows = np.rint(np.clip(np.hstack([features, np.ones((len(y), 1))]), -CLIP, CLIP) * 4096) / 4096
    weight = 1 / np.sqrt(np.bincount(y)[y])
    gram = (rows * weight[:, None]).T @ rows
    found = travelling(sums_of(features, y, 2, CLIP))
    assert found.gram == pytest.approx(gram[np.triu_indices(4)] * 2**15, abs=0.51)
    assert found.moment == pytest.approx((rows * weight[:, None]).T @ np.eye(2)[y] * 2**15, abs=0.51)


@pytest.mark.parametrize("columns", [None, [0, 1, 5, 17, 30]])
@pytest.mark.parametrize("has_own", [False, True])
def test_heads_are_the_same(columns: list[int] | None, has_own: bool) -> None:
    width = 40
    tensors, shared = shared_sums(width)
    own = by_torch(*windows(1, width=width), 6)
    clients = 3.0 if has_own else 0.0
    mask = None if columns is None else torch.tensor([float(i in columns) for i in range(width)])
    damping = Damping(RIDGE, 3.0 if has_own else 0.0)
    weight, bias = ridge.solve(tensors, own, torch.tensor(clients), damping, mask)
    found = ridge_numpy.solve(
        shared, FixedSums(own["gram"].numpy(), own["moment"].numpy()) if has_own else None, clients, damping, columns
    )
    assert np.abs(found.weight - weight.numpy()).max() <= 1e-9
    assert np.abs(found.bias - bias.numpy()).max() <= 1e-9
    unused = [i for i in range(width) if columns is not None and i not in columns]
    assert not found.weight[:, unused].any()


def test_a_personal_class_is_one_more_column_of_the_same_equations() -> None:
    width, personal = 12, 6
    _, shared = shared_sums(width)
    features, y = windows(2, width=width, classes=personal + 1)
    own = travelling(sums_of(features, y, personal + 1, CLIP))
    head = ridge_numpy.solve(shared, own, 3, Damping(RIDGE))
    half = np.zeros((width + 1, width + 1))
    half[np.triu_indices(width + 1)] = (shared.gram + 3.0 * own.gram) / 2**15
    gram = half + np.triu(half, 1).T
    moment = np.hstack([shared.moment, np.zeros((width + 1, 1))]) + 3.0 * own.moment
    damped = gram + RIDGE * np.trace(gram) / (width + 1) * np.eye(width + 1)
    expected = np.linalg.inv(damped) @ (moment / 2**15)
    assert np.allclose(np.vstack([head.weight.T, head.bias]), expected, atol=1e-9)
    mine = y == personal
    assert (head.classes(features[mine]) == personal).mean() > 0.8


def test_without_any_window_everything_is_zero() -> None:
    nothing = travelling(sums_of(np.zeros((0, 5)), np.zeros(0, int), 3, CLIP))
    head = ridge_numpy.solve(nothing, None, 1, Damping(RIDGE))
    assert not head.weight.any()
    assert not head.bias.any()


def test_noise_that_hides_how_features_are_spread_is_noticed() -> None:
    _, shared = shared_sums(12)
    assert ridge_numpy.feature_moments(shared, (0, 2)) is not None
    noisy = shared.gram.copy()
    noisy[0] -= 10 * noisy[0]  # Σ x² of the first feature
    assert ridge_numpy.feature_moments(shared._replace(gram=noisy), (0, 2)) is None


def test_sums_of_another_network_are_refused() -> None:
    _, shared = shared_sums(12)
    with pytest.raises(UpdateError, match="12 features and 6 classes, the client's of 11 and 6"):
        ridge_numpy.solve(shared, travelling(sums_of(*windows(1, width=11), 6, CLIP)), 1, Damping(RIDGE))
    with pytest.raises(UpdateError, match="no fewer classes"):
        ridge_numpy.solve(shared, travelling(sums_of(*windows(1, width=12, classes=5), 5, CLIP)), 1, Damping(RIDGE))


def test_it_needs_no_torch() -> None:
    program = "import sys, federation.aggregation.ridge_numpy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
