"""The features of `har_features` in float64 numpy, from their description alone: the oracle of several tests."""

from __future__ import annotations

import numpy as np


def squash(h: np.ndarray) -> np.ndarray:
    return np.sign(h) * np.log1p(np.abs(h))


def moments(x: np.ndarray) -> np.ndarray:
    """Mean, deviation, mean |Δ| and |rfft| of bins 1 to 8 of x (n, 128, k): (n, 11 k)."""
    spectrum = np.abs(np.fft.rfft(x - x.mean(1, keepdims=True), axis=1))[:, 1:9] / x.shape[1]
    return np.concatenate([x.mean(1), x.std(1), np.abs(np.diff(x, axis=1)).mean(1), spectrum.reshape(len(x), -1)], 1)


def reference(x: np.ndarray) -> np.ndarray:
    """The 183 features in float64, by numpy's rfft and norms."""
    x = x.astype(np.float64)
    mean, acceleration, rotation = x.mean(1), x[..., :3], x[..., 3:]
    sizes = np.stack([np.linalg.norm(acceleration, axis=2), np.linalg.norm(rotation, axis=2)], 2)
    down = mean[:, :3] / (np.linalg.norm(mean[:, :3], axis=1, keepdims=True) + 1e-6)
    along = [np.einsum("ntc,nc->nt", part, down) for part in (acceleration, rotation)]
    across = [
        np.linalg.norm(part - v[..., None] * down[:, None], axis=2)
        for part, v in zip((acceleration, rotation), along, strict=True)
    ]
    levels = np.stack([along[0], across[0], along[1], across[1]], 2)
    moved = levels - levels.mean(1, keepdims=True)
    quarters = np.concatenate([moved[:, 32 * k : 32 * k + 32].mean(1) for k in range(4)], 1)
    rotations = np.stack([sizes[..., 1].min(1), sizes[..., 1].max(1)], 1)
    free = [moments(sizes)[:, 1:], moments(levels)[:, 1:], rotations, quarters, moved.min(1), moved.max(1)]
    centred = x - mean[:, None]
    covariance = np.einsum("ntc,ntd->ncd", centred, centred) / x.shape[1]
    deviation = np.sqrt(np.einsum("ncc->nc", covariance)) + 0.05
    first, second = np.triu_indices(6, 1)
    correlations = (covariance / (deviation[:, :, None] * deviation[:, None]))[:, first, second]
    squashed = [*free, moments(x), x.min(1), x.max(1)]
    return np.concatenate([*map(squash, squashed), correlations], 1)
