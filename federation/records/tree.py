"""Small operations on trees of tensors, which keep the key order so that trees stay comparable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree

from federation.protocol.arrays import flatten, unflatten
from federation.records import Tensors

__all__ = [
    "expand",
    "flatten",
    "leaves",
    "map_tree",
    "merge",
    "prefixed",
    "select",
    "squared_distance",
    "stack",
    "total",
    "unflatten",
    "unstack",
    "where",
    "with_prefix",
    "without_prefix",
]


def map_tree(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply `function` leaf by leaf to trees of the same shape."""
    return _pytree.tree_map(function, *trees)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves in key order."""
    return _pytree.tree_leaves(tree)


def merge(tree: Tensors, new: Mapping[str, Tensor]) -> Tensors:
    """Replace the entries of `tree` that `new` has; entries that only `new` has are ignored."""
    return {name: new.get(name, value) for name, value in tree.items()}


def select(tree: Tensors, keep: Callable[[str], bool]) -> Tensors:
    """Return the entries whose name `keep` accepts."""
    return {name: value for name, value in tree.items() if keep(name)}


def prefixed(tree: Tensors, prefix: str) -> Tensors:
    """Return the entries under names that begin with `prefix`."""
    return {prefix + name: value for name, value in tree.items()}


def with_prefix(tree: Tensors, prefix: str) -> Tensors:
    """Return the entries whose name begins with `prefix`, under their names without it."""
    return {name.removeprefix(prefix): value for name, value in tree.items() if name.startswith(prefix)}


def without_prefix(tree: Tensors, prefix: str) -> Tensors:
    """Return the entries whose name does not begin with `prefix`."""
    return {name: value for name, value in tree.items() if not name.startswith(prefix)}


def squared_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Return Σ ‖a − b‖² over the names of `b`."""
    # one kernel forward and one backward for each tensor, where subtracting, squaring and summing take three and four
    parts = [F.mse_loss(a[name], value, reduction="sum") for name, value in b.items()]
    return torch.stack(parts).sum()


def where(condition: Tensor, new: Any, old: Any) -> Any:
    """Choose `new` or `old`, leaf by leaf, by one scalar condition."""
    return map_tree(lambda a, b: torch.where(condition, a, b), new, old)


def stack(trees: Sequence[Any]) -> Any:
    """Stack K equal trees along a new first dimension."""
    return map_tree(lambda *xs: torch.stack(xs), *trees)


def expand(tree: Any, count: int) -> Any:
    """View one tree as `count` stacked ones without copying."""
    return map_tree(lambda x: x.expand(count, *x.shape), tree)


def unstack(tree: Any, count: int) -> list[Any]:
    """Split a stacked tree into its `count` single ones; each owns its memory."""
    return [map_tree(lambda x, i=i: x[i].clone(), tree) for i in range(count)]


def total(trees: Iterable[Any]) -> Any:
    """Sum trees leaf by leaf, in the order in which they come."""
    iterator = iter(trees)
    result = next(iterator)
    for tree in iterator:
        result = map_tree(torch.add, result, tree)
    return result
