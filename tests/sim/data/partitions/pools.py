"""Labelled examples to divide."""

from __future__ import annotations

import numpy as np

from sim.data.partitions import Pool


def pool(sizes: tuple[int, ...] = (900, 700, 800, 600), seed: int = 0, owners: int = 7) -> Pool:
    """Examples of so many in each class, a quarter of them published as test, in random order."""
    random = np.random.default_rng(seed)
    y = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    client = np.array([f"writer-{k}" for k in range(owners)])[random.integers(0, owners, len(y))]
    return Pool(y, len(sizes), random.random(len(y)) < 0.75, client)
