"""Both entropies against float64 numpy that goes from pixel to pixel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sim.results.artifacts import feature_entropy, softmax_entropy

RANDOM = np.random.default_rng(5)


def entropy(shares: np.ndarray) -> float:
    return float(-sum(share * math.log(share) for share in shares if share > 0))


def test_softmax_entropy_pixel_by_pixel() -> None:
    logits = RANDOM.normal(0, 3, size=(2, 5, 3, 4))
    found = softmax_entropy(torch.from_numpy(logits))
    assert found.shape == (2, 3, 4)
    for n, i, j in np.ndindex(2, 3, 4):
        shares = np.exp(logits[n, :, i, j]) / np.exp(logits[n, :, i, j]).sum()
        assert float(found[n, i, j]) == pytest.approx(entropy(shares), rel=1e-12)


def test_softmax_entropy_at_its_ends() -> None:
    """Equal logits: ln C; a certain class: 0; a class that scores −∞, as one without a prototype does, has no share."""
    logits = torch.zeros(1, 4, 1, 3)
    logits[0, 0, 0, 1] = 1e4
    logits[0, 2:, 0, 2] = -torch.inf
    assert softmax_entropy(logits)[0, 0].tolist() == pytest.approx([math.log(4), 0.0, math.log(2)])
    assert softmax_entropy(logits.half()).dtype == torch.float64


def test_feature_entropy_pixel_by_pixel() -> None:
    """Features that are not negative are divided by their sum; others are raised by their least first."""
    features = RANDOM.normal(size=(2, 6, 3, 4))
    features[0] = np.abs(features[0])
    found = feature_entropy(torch.from_numpy(features), (3, 4))
    for n, i, j in np.ndindex(2, 3, 4):
        raised = features[n, :, i, j] - min(0.0, features[n, :, i, j].min())
        assert float(found[n, i, j]) == pytest.approx(entropy(raised / raised.sum()), rel=1e-12)


def test_feature_entropy_is_interpolated_between_the_centres_of_cells() -> None:
    """Twice as fine: a quarter of the way from one centre to the next, and flat beyond the outermost."""
    features = RANDOM.normal(size=(1, 6, 2, 3))
    coarse, fine = (feature_entropy(torch.from_numpy(features), size)[0].numpy() for size in ((2, 3), (4, 6)))

    def between(i: int, j: int) -> float:
        y, x = (min(max((k + 0.5) / 2 - 0.5, 0), most) for k, most in ((i, 1), (j, 2)))
        top, left = int(min(y, 0)), int(min(x, 1))
        down, right = y - top, x - left
        rows = coarse[top : top + 2, left : left + 2]
        return float(np.array([1 - down, down]) @ rows @ np.array([1 - right, right]))

    for i, j in np.ndindex(4, 6):
        assert fine[i, j] == pytest.approx(between(i, j), rel=1e-12)


def test_feature_entropy_at_its_ends() -> None:
    features = torch.zeros(1, 4, 1, 4)
    features[0, :, 0, 1] = 3.0
    features[0, 2, 0, 2] = 5.0
    features[0, :, 0, 3] = -1.0
    found = feature_entropy(features, (1, 4))[0, 0].tolist()
    assert found == pytest.approx([0.0, math.log(4), 0.0, 0.0]), "no feature, all alike, one alone, all as negative"
