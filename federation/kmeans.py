"""Lloyd's k-means from a given start, bounded by matrix products (S. Lloyd, IEEE Trans. Inf. Theory 28, 1982)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Distances held at a time: 64 MB in float32, whatever the number of points."""


class Clustering(NamedTuple):
    """What k-means found."""

    centres: Tensor  # (G, d)
    labels: Tensor  # (M,) int64, nearest centre before the last move
    inertia: float  # Σ squared distance to that centre
    iterations: int


def kmeans(
    points: Tensor | Sequence[Tensor], start: Tensor, *, max_iterations: int = 300, tolerance: float = 1e-4
) -> Clustering:
    """Cluster points (M, d), or pieces of them, from the centres `start` (G, d).

    Stops when no label changes, or when Σ‖centre moved‖² ≤ tolerance · mean variance of the points, as scikit-learn
    does. A cluster that is emptied keeps its previous centre.
    """
    pool = points if isinstance(points, Tensor) else torch.cat(list(points))
    # around the mean, ‖c‖² − 2·x·c loses fewer digits
    mean = pool.mean(0)
    pool, centres = pool - mean, start.to(pool) - mean
    threshold = tolerance * float(pool.var(0, unbiased=False).mean())
    labels, inertia, iterations = torch.full((len(pool),), -1, device=pool.device), 0.0, 0
    while iterations < max_iterations:
        iterations += 1
        nearest, inertia = _assign(pool, centres)
        moved = _means(pool, nearest, centres)
        shift = float(((moved - centres) ** 2).sum())
        unchanged = bool(torch.equal(nearest, labels))
        labels, centres = nearest, moved
        if unchanged or shift <= threshold:
            break
    return Clustering((centres + mean).to(start.dtype), labels, inertia, iterations)


def _assign(points: Tensor, centres: Tensor) -> tuple[Tensor, float]:
    """Nearest centre of each point and the sum of squared distances; ‖x‖² is the same for every centre."""
    half = (centres**2).sum(1) / 2
    rows = max(1, CHUNK_ELEMENTS // len(centres))
    labels, gain = [], 0.0
    for chunk in torch.split(points, rows):
        best = torch.addmm(half, chunk, centres.T, alpha=-1).min(1)
        labels.append(best.indices)
        gain += float(best.values.double().sum())
    return torch.cat(labels), max(0.0, float((points.double() ** 2).sum()) + 2 * gain)


def _means(points: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    count = torch.bincount(labels, minlength=len(centres)).to(points.dtype)
    total = torch.zeros_like(centres).index_add_(0, labels, points)
    return torch.where(count[:, None] > 0, total / count.clamp(min=1)[:, None], centres)
