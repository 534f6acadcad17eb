"""Exact sums for ridge regression: fixed point in transit, float64 for solving heads.

Of examples with features a (with a 1 at the end) and classes y (0/1) the ridge solution needs G = Σ w a aᵀ and
B = Σ w a yᵀ alone, with w = 1 / √n_class of the client. Both add over clients. To make sums independent of batches and
order, features are rounded to 2⁻¹² first, so their products are whole numbers that float64 adds without error. Uploads
are 32-bit whole numbers of 2⁻¹⁵, which int64 adds without error.

`implausibility` checks whether sums can be those of a client with so many examples: exact bounds, no statistics.

Of n_c examples of class c with features a, |a_j| ≤ clip and a 1 at the end, a client sends G = Σ_c n_c^(−1/2) Σ a aᵀ
and B = Σ_c n_c^(−1/2) Σ a y_cᵀ. So B's last row is √n_c, their squares sum to n, G's
last entry is Σ_c √n_c, and no entry is larger than that times clip². All of it is one sum of products of (a, y): the
matrix [[G, B], [Bᵀ, diag √n_c]] is positive semidefinite, up to what fixed point has rounded off; n_c are whole
numbers, and G's last column, of all examples' features, is the sum of B's, which are by class. So a client that claims
n examples can't weigh more than n examples can.

Sums of several clients are checked against the additive bounds, all except whole numbers of examples. Each client
rounds by itself and may add noise, so the bounds are wider accordingly.
"""

from __future__ import annotations

import math
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


def restricted(sums: Tree, columns: Tensor) -> Tensors:
    """Return sums of the features with 1 in `columns` (D,) alone: heads solved of them give the others no weight."""
    used = torch.cat([columns > 0, torch.ones_like(columns[:1]) > 0])
    rows, others = torch.triu_indices(len(used), len(used), device=used.device)
    return {"gram": sums["gram"] * (used[rows] & used[others]), "moment": sums["moment"] * used[:, None]}


def unpacked(upper: Tensor, size: int) -> Tensor:
    """Return G (d, d) of its upper triangle (d (d + 1) / 2,)."""
    rows, columns = torch.triu_indices(size, size, device=upper.device)
    half = torch.zeros_like(upper[:1]).expand(size, size).index_put((rows, columns), upper)
    return half + half.triu(1).T


def capped(sums: Tensors, steps: int) -> Tensors:
    """Cap the weight of a client's sums, in SUM_STEPS."""
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


ROUNDING = 1.0 / SUM_STEPS
"""Twice of what fixed point rounds off an entry at the most."""


def implausibility(upload: Tree, examples: int, clip: float) -> str:
    """Say why a client with this many examples can't have these sums; empty if it can.

    `upload` holds gram (d (d + 1) / 2,) and moment (d, C), int32, of shapes that were checked.
    """
    if any(int(upload[name].long().abs().max()) >= LIMIT for name in ("gram", "moment")):
        return "a sum is at the 32-bit limit, so it was cut off; use fewer examples"
    upper, moment = (upload[name].double() / SUM_STEPS for name in ("gram", "moment"))
    roots = moment[-1]  # √n_c
    if float(roots.min()) < 0:
        return f"a class has a weight of {float(roots.min()):g}: expected the root of its number of examples"
    claimed = float(((roots - ROUNDING).clamp(min=0) ** 2).sum())
    if claimed > examples:
        return f"the sums contain at least {claimed:.1f} examples, but {examples} are claimed"
    if (problem := _not_whole(roots)) is not None:
        return f"a class has {problem:g} examples: expected a whole number"
    return _entries(upper, moment, roots, clip, Slack()) or _indefinite(upper, moment, roots, Slack())


NOISE_DEVIATIONS = 8.0
"""No number of a few hundred thousand has more noise, with a probability below 10⁻⁹."""


class Slack(NamedTuple):
    """How far sums may be from exact ones: for so many clients that have rounded, and for noise."""

    clients: float = 1.0
    deviation: float = 0.0

    @property
    def entry(self) -> float:
        """How far one number may be from it."""
        return self.clients * ROUNDING + NOISE_DEVIATIONS * self.deviation

    def eigenvalue(self, side: int) -> float:
        """Return how far an eigenvalue of a matrix with this side may be from it.

        Rounding each entry by half a step moves none by more than half a step times the side; noise of deviation σ in
        each entry none by more than about 2 σ times the side's root (Wigner).
        """
        noise = self.deviation * (3.0 * math.sqrt(side) + NOISE_DEVIATIONS)
        return self.clients * ROUNDING * side + noise


def total_implausibility(sums: Tree, clients: int, clip: float, deviation: float = 0.0) -> str:
    """Say why this many clients can't have these sums; empty if they can.

    `sums` holds gram (d (d + 1) / 2,) and moment (d, C), int64; deviation: of the noise in each number, in SUM_STEPS.
    """
    if clients < 0:
        return f"the sums are of {clients} clients"
    # sums that are cut off for noise are rounded once more
    slack = Slack(clients * (2.0 if deviation else 1.0), deviation / SUM_STEPS)
    most = clients * LIMIT / SUM_STEPS + slack.entry
    upper, moment = (sums[name].double() / SUM_STEPS for name in ("gram", "moment"))
    for name, values in (("gram", upper), ("moment", moment)):
        if (largest := float(values.abs().max())) > most:
            return f"a number of {name} is {largest:g}, but those of {clients} clients reach {most:g} at most"
    roots = moment[-1]
    if float(roots.min()) < -NOISE_DEVIATIONS * slack.deviation:
        return f"a class has a weight of {float(roots.min()):g}: expected the roots of numbers of examples"
    return _entries(upper, moment, roots, clip, slack) or _indefinite(upper, moment, roots, slack)


def _not_whole(roots: Tensor) -> float | None:
    """Return a number of examples that none can be; what fixed point rounds off a root counts twice its root."""
    counts = roots.square()
    beside = (counts - counts.round()).abs() - ROUNDING * (roots + ROUNDING)
    worst = int(beside.argmax())
    return float(counts[worst]) if float(beside[worst]) > 0 else None


def _entries(upper: Tensor, moment: Tensor, roots: Tensor, clip: float, wider: Slack) -> str:
    size, total, clip = moment.shape[0], float(roots.sum()), clip + 0.5 / FEATURE_STEPS
    slack = wider.entry * (1 + len(roots))
    if (over := float((moment[:-1].abs() - clip * roots).max())) > slack * clip:
        return f"a sum of features is {over:g} above {clip:g} times the weight of its class's examples"
    diagonal = upper[_diagonal(size)]
    if float(diagonal.min()) < -NOISE_DEVIATIONS * wider.deviation:
        return f"a sum of squares is {float(diagonal.min()):g}, below 0"
    if abs(float(diagonal[-1]) - total) > slack:
        return f"the examples' weight is {float(diagonal[-1]):g} in one place but {total:g} in another"
    apart = (upper[_last_column(size)] - moment.sum(1)).abs()
    if (most := float(apart.max())) > slack:
        at = int(apart.argmax())
        return f"feature {at} sums up to {most:g} more or less over all examples than over those of each class"
    if (most := float(upper.abs().max())) > max(clip, 1.0) ** 2 * total + slack * max(clip, 1.0) ** 2:
        return f"a sum of products is {most:g}; features of up to {clip:g} reach {clip**2 * total:g} at the most"
    return ""


def _indefinite(upper: Tensor, moment: Tensor, roots: Tensor, slack: Slack) -> str:
    """Say that the sums are of no products at all; by Cholesky, which is ten times as fast as eigenvalues."""
    size, classes = moment.shape
    joint = torch.zeros(size + classes, size + classes, dtype=torch.float64)
    rows, columns = torch.triu_indices(size, size)
    joint[rows, columns] = upper
    joint[columns, rows] = upper
    joint[:size, size:], joint[size:, :size] = moment, moment.T
    joint[size:, size:] = roots.diag()
    joint.diagonal().add_(slack.eigenvalue(size + classes))
    if int(torch.linalg.cholesky_ex(joint).info):
        return "the sums are not positive semidefinite: no examples have such sums of products"
    return ""


def _last_column(size: int) -> Tensor:
    """Where the last column lies in the upper triangle: at the end of each row."""
    row = torch.arange(1, size + 1)
    return row * size - row * (row - 1) // 2 - 1


def _diagonal(size: int) -> Tensor:
    """Where the diagonal lies in the upper triangle, row by row."""
    row = torch.arange(size)
    return row * size - row * (row - 1) // 2
