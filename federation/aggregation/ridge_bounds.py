"""Whether sums for ridge regression can be those of a client with so many examples: exact bounds, no statistics.

Of n_c examples of class c with features a, |a_j| ≤ clip and a 1 at the end, a client sends G = Σ_c n_c^(−1/2) Σ a aᵀ
and B = Σ_c n_c^(−1/2) Σ a y_cᵀ (`federation.aggregation.ridge`). So B's last row is √n_c, their squares sum to n, G's
last entry is Σ_c √n_c, and no entry is larger than that times clip². All of it is one sum of products of (a, y): the
matrix [[G, B], [Bᵀ, diag √n_c]] is positive semidefinite, up to what fixed point has rounded off; n_c are whole
numbers, and G's last column, of all examples' features, is the sum of B's, which are by class. Whoever claims n
examples weighs no more than n examples can.

Sums of several clients are held against what adds up: all of it but the whole numbers of examples. Each client rounds
by itself, and may add noise, so the bounds are as much wider.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from federation.aggregation.ridge import FEATURE_STEPS, LIMIT, SUM_STEPS
from federation.records import Tree

ROUNDING = 1.0 / SUM_STEPS
"""Twice of what fixed point rounds off an entry at the most."""


def implausibility(upload: Tree, examples: int, clip: float) -> str:
    """Say why no client with so many examples can have these sums; empty if one can.

    `upload` holds gram (d (d + 1) / 2,) and moment (d, C), int32, of shapes that were checked.
    """
    if any(int(upload[name].long().abs().max()) >= LIMIT for name in ("gram", "moment")):
        return "a sum is at the limit of 32 bits: it was cut off; fewer examples fit"
    upper, moment = (upload[name].double() / SUM_STEPS for name in ("gram", "moment"))
    roots = moment[-1]  # √n_c
    if float(roots.min()) < 0:
        return f"a class has a weight of {float(roots.min()):g}: expected the root of its number of examples"
    claimed = float(((roots - ROUNDING).clamp(min=0) ** 2).sum())
    if claimed > examples:
        return f"the sums hold at least {claimed:.1f} examples, and {examples} are claimed"
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
    """Say why no so many clients can have these sums; empty if they can.

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
            return f"a number of {name} is {largest:g}, and those of {clients} clients reach {most:g} at most"
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
        return f"the examples' weight is {float(diagonal[-1]):g} in one place and {total:g} in another"
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
