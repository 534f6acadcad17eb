"""t-SNE (van der Maaten and Hinton 2008) of a few thousand vectors at most, the same for one seed."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.manifold import TSNE
from torch import Tensor

from federation.seeds import generator, seed_for
from sim.errors import AnalysisError
from sim.reports.analysis.colours import Points

PERPLEXITY = 30.0


def tsne(vectors: Tensor, seed: int) -> Points:
    """Map vectors (n, D) to the plane (n, 2); neighbourhoods survive, distances and sizes of clusters do not.

    Raises:
        AnalysisError: for vectors that are not finite, or all the same: the run diverged, or its features died.
    """
    values = vectors.double().numpy()
    if not np.isfinite(values).all() or not values.std(axis=0).any():
        raise AnalysisError("t-SNE needs features that are finite and differ; did the run diverge?")
    perplexity = min(PERPLEXITY, max(1.0, (len(values) - 1) / 3))
    random = seed_for(seed, "tsne") % (1 << 32)
    model = TSNE(perplexity=perplexity, init="pca", learning_rate="auto", random_state=random)
    return np.asarray(model.fit_transform(values), np.float64)


def subsample(count: int, limit: int, seed: int, *what: str) -> Tensor:
    """Draw up to `limit` of `count` indices, in ascending order; `what` makes draws independent of each other."""
    random = generator(seed, "subsample", *what)
    chosen = random.choice(count, min(limit, count), replace=False)
    return torch.from_numpy(np.sort(chosen))
