"""Weights midway between two networks of one architecture.

M. Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022, arXiv 2109.01903: between a model and the one
that was fine-tuned from it, weights lie in one basin, and the point midway is often better than both ends.
"""

from __future__ import annotations

from federation.records import Client, Tensors


def midway(one: Client, other: Client) -> Client:
    """Return the network between two; counters and other whole numbers are the second's."""
    return Client(_between(one.params, other.params), _between(one.buffers, other.buffers), {})


def _between(one: Tensors, other: Tensors) -> Tensors:
    return {name: (one[name] + end) / 2 if end.is_floating_point() else end for name, end in other.items()}
