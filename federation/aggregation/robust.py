"""Robust alternatives to the mean, which a minority of clients with arbitrary parameters can hardly move.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: Byzantine-Robust Distributed Learning, ICML 2018, arXiv 1803.01498
(coordinate-wise median, definition 1; trimmed mean, definition 2). P. Blanchard, E. M. El Mhamdi, R. Guerraoui,
J. Stainer: Machine Learning with Adversaries, NeurIPS 2017, arXiv 1703.02757 (Krum, section 4). None of them weighs
clients by their examples, because clients claim their own number.

`used` says which clients' sums a rule uses: least trimmed squares, over clients or over groups of them. P. J.
Rousseeuw: Least Median of Squares Regression, Journal of the American Statistical Association 79, 1984 (least trimmed
squares); P. J. Rousseeuw, K. Van Driessen: Computing LTS Regression for Large Data Sets, Data Mining and Knowledge
Discovery 12, 2006 (concentration steps, theorem 1); G. Minsker: Geometric Median and Robust Estimation in Banach
Spaces, Bernoulli 21, 2015 (groups instead of single clients).

Differs from the papers: a unit is not an example but a client's sums, of which any head's squared error follows
exactly: tr(WᵀGW) − 2 tr(WᵀB) + Σ_c √n_c. So whole clients' sums are used, added without rounding: they stay positive
semidefinite, and B matches G. Tried and rejected because of their cost without any attack (the macro-F1 of MotionSense
fell from 98 to 43, from 94 to 81): coordinate-wise medians of normalized sums, and of clients' own heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import floor
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from federation.aggregation import ridge
from federation.errors import RoundError
from federation.records import Tensors
from federation.seeds import seed_for

Rule = Literal["mean", "median", "trimmed_mean", "krum"]


def combine(rule: Rule, clients: Sequence[Tensors], *, trim: float, byzantine: int) -> Tensors:
    """Combine clients' parameters by a rule that needs all of them.

    Raises:
        RoundError: if there are too few clients for the rule.
    """
    if rule == "krum":
        return dict(clients[krum(clients, byzantine)])
    return {name: _by_coordinate(rule, torch.stack([client[name] for client in clients]), trim) for name in clients[0]}


def trimmed_mean(values: Tensor, trim: float) -> Tensor:
    """Average values (K, ...) over the first dimension without the ⌊trim·K⌋ largest and smallest of each coordinate."""
    cut = math.floor(trim * len(values))
    kept = values.sort(0).values[cut : len(values) - cut]
    return kept.mean(0)


def median(values: Tensor) -> Tensor:
    """Median over the first dimension of values (K, ...); the mean of the two middle ones where K is even."""
    ordered, half = values.sort(0).values, len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def krum(clients: Sequence[Tensors], byzantine: int) -> int:
    """Return index of the client nearest to its K − f − 2 nearest others, f of the K being byzantine.

    Raises:
        RoundError: with fewer than f + 3 clients, where nobody has such neighbours.
    """
    neighbours = len(clients) - byzantine - 2
    if neighbours < 1:
        raise RoundError(
            f"krum with byzantine={byzantine} needs at least {byzantine + 3} updates, got {len(clients)}; lower "
            f"byzantine or raise minimum_clients"
        )
    flat = torch.stack([torch.cat([value.flatten().double() for value in client.values()]) for client in clients])
    squared = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
    squared.fill_diagonal_(torch.inf)
    return int(squared.sort(1).values[:, :neighbours].sum(1).argmin())


def _by_coordinate(rule: Rule, values: Tensor, trim: float) -> Tensor:
    return median(values) if rule == "median" else trimmed_mean(values, trim)


STARTS = 8
STEPS = 10
"""Concentration steps of a start at the most; few need more than four."""
REFITS = 3
OUTLYING = 6.0
"""Scaled median absolute deviations above the median error, beyond which the median's rule uses nobody."""
MAD_SCALE = 1.4826
"""Makes a median absolute deviation a standard deviation, of normal numbers."""


class Units(NamedTuple):
    """Sums of clients or groups, each divided by the weight of its examples, so that none counts more than another."""

    gram: Tensor  # (K, d, d)
    moment: Tensor  # (K, d, C)


def deal(clients: Sequence[str], groups: int, seed: int) -> list[list[str]]:
    """Deal clients into groups of about equal size, by a seed and whatever their order; one each if they are few."""
    shuffled = sorted(clients, key=lambda client: (seed_for(seed, "sum group", client), client))
    return [shuffled[start::groups] for start in range(min(groups, len(shuffled)))]


def used(rule: Rule, sums: Sequence[Tensors], trim: float, damping: float) -> list[int]:
    """Return which units the rule uses, of the sums of each in fixed point; `damping` is λ.

    `trimmed_mean`: all but the ⌊trim · K⌋ that fit the others' head worst. `median`: of the half that fit best
    together everything that fits as well. Units without examples change nothing, and are used.
    """
    heavy = [index for index, unit in enumerate(sums) if float(_weight(unit)) > 0]
    if rule == "mean" or len(heavy) < 3:  # of two units, it is unknown which one is wrong
        return list(range(len(sums)))
    units = _normalized([sums[index] for index in heavy])
    if rule == "trimmed_mean":
        fitting = _concentrated(units, len(heavy) - floor(trim * len(heavy)), damping)
    else:
        fitting = _refitted(units, _concentrated(units, len(heavy) // 2 + 1, damping), damping)
    left_out = {heavy[index] for index in range(len(heavy)) if index not in fitting}
    return [index for index in range(len(sums)) if index not in left_out]


def _concentrated(units: Units, keep: int, damping: float) -> set[int]:
    """Return the `keep` units whose own head has the least error on them, of those that several starts lead to."""
    count, known = len(units.gram), dict[frozenset[int], Tensor]()
    blocks = [set(range(start, count, STARTS)) for start in range(min(STARTS, count))]

    def errors_of(rows: set[int]) -> Tensor:  # starts converge: don't solve the same set again
        key = frozenset(rows)
        if key not in known:
            known[key] = _errors(units, rows, damping)
        return known[key]

    found = [_descended(errors_of, start, keep) for start in (set(range(count)), *blocks)]
    return min(found, key=lambda moments: moments[0])[1]


def _descended(errors_of: Callable[[set[int]], Tensor], start: set[int], keep: int) -> tuple[float, set[int]]:
    """Fit, keep what fits best, fit again: neither step raises the error of what is kept."""
    kept, errors = start, errors_of(start)
    for _step in range(STEPS):
        best = set(errors.argsort(stable=True)[:keep].tolist())
        if best == kept:
            break
        kept, errors = best, errors_of(best)
    return float(errors[sorted(kept)].sum()), kept


def _refitted(units: Units, kept: set[int], damping: float) -> set[int]:
    for _time in range(REFITS):
        errors = _errors(units, kept, damping)
        middle = errors.median()
        limit = middle + OUTLYING * MAD_SCALE * (errors - middle).abs().median()
        kept = set(torch.nonzero(errors <= limit)[:, 0].tolist())
    return kept


def _errors(units: Units, kept: set[int], damping: float) -> Tensor:
    """Return the mean squared error on each unit (K,) of the head that some of them give."""
    rows = sorted(kept)
    gram, moment = torch.zeros_like(units.gram[0]), torch.zeros_like(units.moment[0])
    for row in rows:  # a copy of all of them would be large
        gram += units.gram[row]
        moment += units.moment[row]
    gram.diagonal().add_(damping * gram.diagonal().mean())
    head = torch.cholesky_solve(moment, torch.linalg.cholesky(gram))
    # one product of a tall matrix: several times as fast as one for each unit
    projected = (units.gram.flatten(0, 1) @ head).view_as(units.moment)
    squares = (projected * head).sum((1, 2))
    return squares - 2 * (units.moment * head).sum((1, 2)) + units.moment[:, -1].sum(1)


def _normalized(sums: Sequence[Tensors]) -> Units:
    size = sums[0]["moment"].shape[0]
    gram, moment = torch.empty(len(sums), size, size, dtype=torch.float64), []
    for full, unit in zip(gram, sums, strict=True):
        weight = _weight(unit)
        full.copy_(ridge.unpacked(unit["gram"].double() / weight, size))
        moment.append(unit["moment"].double() / weight)
    return Units(gram, torch.stack(moment))


def _weight(unit: Tensors) -> Tensor:
    """Return the weight of the examples, G's last entry."""
    return unit["gram"][-1].double()
