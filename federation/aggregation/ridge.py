"""Exact sums for ridge regression: fixed point on the way to the server, float64 where a head is solved of them.

Of examples with features a (with a 1 at the end) and classes y (0/1) the ridge solution needs G = Σ w a aᵀ and
B = Σ w a yᵀ alone, with w = 1 / √n_class of the client. Both add over clients. So that nothing depends on how sums are
cut and ordered, features are rounded to 2⁻¹² first: their products are whole numbers that float64 adds without error.
What travels are 32-bit whole numbers of 2⁻¹⁵, which int64 adds without error.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from federation.aggregation.ridge_numpy import Damping
from federation.records import Tensors, Tree
from federation.tasks.task import LabelledFeatures

FEATURE_STEPS = float(1 << 12)
"""Steps to 1 of a feature."""
SUM_STEPS = float(1 << 15)
"""Steps to 1 of what travels."""
LIMIT = float((1 << 31) - 1)
MAX_EXAMPLES = 1 << 23
"""Of one class, whose products with features of up to 8 float64 adds exactly: (2¹⁵)² · 2²³ = 2⁵³."""


class RidgeSums(NamedTuple):
    """Sums over a client's examples, by class, in float64: whole numbers of FEATURE_STEPS, exactly."""

    counts: Tensor  # (C,) examples
    gram: Tensor  # (C, d, d) Σ a aᵀ, d = D + 1
    total: Tensor  # (C, d) Σ a


def empty_ridge_sums(classes: int, length: int, like: Tensor, clients: tuple[int, ...] = ()) -> RidgeSums:
    """Return sums of no example with features of this length (D), where `like` is."""

    def zeros(*shape: int) -> Tensor:
        return like.new_zeros((*clients, classes, *shape), dtype=torch.float64)

    return RidgeSums(zeros(), zeros(length + 1, length + 1), zeros(length + 1))


def added(sums: RidgeSums, labelled: LabelledFeatures, clip: float) -> RidgeSums:
    """Add features (m, D), clipped to ±clip, with their classes; rows of mask 0 add nothing, whatever they hold."""
    counted = labelled.mask > 0
    features = torch.where(counted[:, None], labelled.features.detach().double(), 0.0).clamp(-clip, clip)
    steps = torch.round(torch.cat([features, torch.ones_like(features[:, :1])], 1) * FEATURE_STEPS)
    classes = torch.arange(sums.counts.shape[-1], device=steps.device)
    one_hot = ((labelled.classes[:, None] == classes) & counted[:, None]).double()
    return RidgeSums(
        sums.counts + one_hot.sum(0),
        sums.gram + torch.einsum("mc,mi,mj->cij", one_hot, steps, steps),
        sums.total + torch.einsum("mc,mi->ci", one_hot, steps),
    )


def travelling(sums: RidgeSums) -> Tensors:
    """Return what a client sends: G's upper triangle (d (d + 1) / 2,) and B (d, C), int32 in SUM_STEPS.

    Each class weighs √n: w = 1 / √n_class. What is beyond 32 bits is cut off there.
    """
    weight = torch.where(sums.counts > 0, sums.counts.clamp(min=1) ** -0.5, 0.0)
    # one class after another: clients without torch have the same bits
    gram = reduce(torch.add, sums.gram * weight[:, None, None]) / FEATURE_STEPS**2
    rows, columns = torch.triu_indices(gram.shape[0], gram.shape[0], device=gram.device)
    moment = (sums.total * weight[:, None]).T / FEATURE_STEPS
    return {"gram": _fixed(gram[rows, columns]), "moment": _fixed(moment)}


def _fixed(values: Tensor) -> Tensor:
    return torch.round(values * SUM_STEPS).clamp(-LIMIT, LIMIT).to(torch.int32)


def total_of(parts: Iterable[Tensors]) -> Tensors:
    """Add what clients have sent: int64, the same whatever the order."""
    total: Tensors = {}
    for part in parts:
        total = {name: part[name].long() + total.get(name, 0) for name in ("gram", "moment")}
    return total


def unpacked(upper: Tensor, size: int) -> Tensor:
    """Return G (d, d) of its upper triangle (d (d + 1) / 2,)."""
    rows, columns = torch.triu_indices(size, size, device=upper.device)
    half = torch.zeros_like(upper[:1]).expand(size, size).index_put((rows, columns), upper)
    return half + half.triu(1).T


def capped(sums: Tensors, steps: int) -> Tensors:
    """Return a client's sums with so much weight of its examples, in SUM_STEPS, if they have more."""
    weight = int(sums["gram"][-1])
    if weight <= steps:
        return sums
    return {name: torch.round(value.double() * (steps / weight)).to(value.dtype) for name, value in sums.items()}


def solve(
    shared: Tree, own: Tree, clients: Tensor, damping: Damping, columns: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return weight (C, D) and bias (C,) in float64 of sums in fixed point.

    W = (G + N Gᵢ + (λ tr/d + floor) I)⁻¹ (B + N Bᵢ): a client's own sums weigh as all others' together; N = `clients`
    in the shared sums, or 0 for the shared head. Zero where both are empty. With `columns` (D,), 1 for a feature that
    is used: the solution of these rows and columns of the same sums, with its own λ tr/d, and 0 elsewhere. A pure
    function, which vmap can lift.
    """
    upper, moment = (
        (shared[name].double() + clients.double() * own[name].double()) / SUM_STEPS for name in ("gram", "moment")
    )
    size = moment.shape[0]
    gram = unpacked(upper, size)
    used = torch.ones_like(moment[:, 0])
    if columns is not None:
        used = torch.cat([columns.to(used), used[:1]])  # and the bias
        gram, moment = gram * used * used[:, None], moment * used[:, None]
    mean = gram.diagonal().sum() / used.sum()
    # a column that is not used stands by itself, with 0 on the right
    damped = torch.where(mean > 0, damping.ridge * mean + damping.floor, damping.floor or 1.0)
    added = torch.where(used > 0, damped, 1.0)
    found = torch.cholesky_solve(moment, torch.linalg.cholesky(gram + torch.diag(added)))
    return found[:-1].T, found[-1]


def solve_mean(
    shared: Tree, own: Tree, clients: Tensor, damping: Damping, columns: Tensor | None, share: float
) -> tuple[Tensor, Tensor]:
    """Return the mean of the head on all features and, with so large a share, the one on `columns`: weight and bias."""
    whole = solve(shared, own, clients, damping)
    if columns is None or not share:
        return whole
    part = solve(shared, own, clients, damping, columns)
    weight, bias = ((1 - share) * pair + share * other for pair, other in zip(whole, part, strict=True))
    return weight, bias
