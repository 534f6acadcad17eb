"""Weighted means of tensors as running sums, so that the server's memory does not grow with clients."""

from __future__ import annotations

from federation.records import Tensors


def add_weighted(sums: Tensors | None, values: Tensors, weight: float) -> Tensors:
    """Add weight · values to float64 sums, which are changed; None: nothing yet.

    In float64 the order in which clients come hardly matters, and 10,000 of them lose nothing.
    """
    if sums is None:
        return {name: value.double() * weight for name, value in values.items()}
    for name, value in values.items():
        sums[name].add_(value, alpha=weight)
    return sums


def mean_of(sums: Tensors, weight: float, like: Tensors) -> Tensors:
    """Divide float64 sums by their weight and return them in the dtypes of `like`."""
    return {name: (sums[name] / weight).to(value.dtype) for name, value in like.items()}
