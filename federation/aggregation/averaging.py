"""Weighted means of tensors as running sums, so that the server's memory does not grow with clients.

`midway` follows M. Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022, arXiv 2109.01903: between a
model and the one that was fine-tuned from it, weights lie in one basin, and the midpoint is often better than both
ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from federation.records import Client, Tensors, Tree
from gaitway.python310 import Self


@dataclass(frozen=True, kw_only=True)
class Accumulator:
    """What a round's updates have come to so far; each family of methods has a subclass."""

    weight: float = 0.0
    """Sum of the updates' weights."""

    @classmethod
    def of(cls, accumulator: Accumulator | None) -> Self:
        """Return an accumulator of this class: the given one, or an empty one for None.

        Raises:
            TypeError: if it is another method's.
        """
        if accumulator is None:
            return cls()
        if not isinstance(accumulator, cls):
            raise TypeError(f"expected {cls.__name__}, not {type(accumulator).__name__}: another method folded it")
        return accumulator


@dataclass(frozen=True, kw_only=True)
class MeanSums(Accumulator):
    """Σ weight · params, or for a robust rule, which must see all clients at once, the clients' params."""

    params: Tensors | None = None  # float64; changed by the next addition
    clients: tuple[Tensors, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SumChanges(Accumulator):
    """By how much the sums of all clients change, in int64, and by how many the clients in them."""

    change: Tensors = field(default_factory=dict)
    clients: int = 0


def sums_of_changes(start: Tensors, total: Tree) -> MeanSums:
    """Return the sums of parameters, W · w + Σ n_k · (w_k − w), of what the changes add up to, and of W."""
    weight = float(total["weight"])
    params = {name: start[name].double() * weight + value for name, value in total["params"].items()}
    return MeanSums(weight=weight, params=params)


def add_weighted(sums: Tensors | None, values: Tensors, weight: float) -> Tensors:
    """Add weight · values to float64 sums, which are changed; None: nothing yet.

    In float64 the order in which clients come hardly matters, and 10,000 of them lose nothing.
    """
    if sums is None:
        return {name: value.double() * weight for name, value in values.items()}
    for name, value in values.items():
        sums[name].add_(value, alpha=weight)
    return sums


def mean_of(sums: Tensors | None, weight: float, like: Tensors) -> Tensors:
    """Divide float64 sums by their weight and return them in the dtypes of `like`."""
    return {name: ((sums or {})[name] / weight).to(value.dtype) for name, value in like.items()}


def midway(first: Client, second: Client) -> Client:
    """Return the network between two; counters and other whole numbers are the second's."""
    return Client(_between(first.params, second.params), _between(first.buffers, second.buffers), {})


def _between(first: Tensors, second: Tensors) -> Tensors:
    return {name: (first[name] + end) / 2 if end.is_floating_point() else end for name, end in second.items()}
