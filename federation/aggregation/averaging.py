"""Weighted means of tensors as running sums, so that the server's memory doesn't grow with the clients.

`midway` follows M. Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022, arXiv 2109.01903: a model and
its fine-tuned version lie in one basin, and their midpoint is often better than both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from federation.records import Client, Tensors, Tree
from gaitway.python310 import Self


@dataclass(frozen=True, kw_only=True)
class Accumulator:
    """The running aggregate of a round's updates; each family of methods has a subclass."""

    weight: float = 0.0
    """Sum of the updates' weights."""

    @classmethod
    def of(cls, accumulator: Accumulator | None) -> Self:
        """Return the given accumulator of this class, or an empty one for None.

        Raises:
            TypeError: if it belongs to another method.
        """
        if accumulator is None:
            return cls()
        if not isinstance(accumulator, cls):
            raise TypeError(f"expected {cls.__name__}, got {type(accumulator).__name__} from another method")
        return accumulator


@dataclass(frozen=True, kw_only=True)
class MeanSums(Accumulator):
    """Σ weight · params, or the clients' params for a robust rule, which must see all clients at once."""

    params: Tensors | None = None  # float64; changed by the next addition
    clients: tuple[Tensors, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SumChanges(Accumulator):
    """The changes, in int64, of all clients' sums and of the number of clients in them."""

    change: Tensors = field(default_factory=dict)
    clients: int = 0


def sums_of_changes(start: Tensors, total: Tree) -> MeanSums:
    """Return the sums of parameters, W · w + Σ n_k · (w_k − w), of what the changes add up to, and of W."""
    weight = float(total["weight"])
    params = {name: start[name].double() * weight + value for name, value in total["params"].items()}
    return MeanSums(weight=weight, params=params)


def add_weighted(sums: Tensors | None, values: Tensors, weight: float) -> Tensors:
    """Add weight · values to float64 sums in place; None starts empty.

    In float64 the clients' order hardly matters, and 10,000 of them lose no precision.
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
    """Return the midpoint of two networks; counters and other whole numbers come from the second."""
    return Client(_between(first.params, second.params), _between(first.buffers, second.buffers), {})


def _between(first: Tensors, second: Tensors) -> Tensors:
    return {name: (first[name] + end) / 2 if end.is_floating_point() else end for name, end in second.items()}
