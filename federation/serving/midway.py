"""Weights midway between two networks of one architecture.

M. Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022, arXiv 2109.01903: between a model and the one
that was fine-tuned from it, weights lie in one basin, and the point midway is often better than both ends.
"""

from __future__ import annotations

from federation.records import Client, Tensors


def midway(first: Client, second: Client) -> Client:
    """Return the network between two; counters and other whole numbers are the second's."""
    return Client(_between(first.params, second.params), _between(first.buffers, second.buffers), {})


def _between(first: Tensors, second: Tensors) -> Tensors:
    return {name: (first[name] + end) / 2 if end.is_floating_point() else end for name, end in second.items()}
