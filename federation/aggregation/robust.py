"""Robust replacements of the mean: a minority of clients with arbitrary parameters moves them little.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: Byzantine-Robust Distributed Learning, ICML 2018, arXiv 1803.01498
(coordinate-wise median, definition 1; trimmed mean, definition 2). P. Blanchard, E. M. El Mhamdi, R. Guerraoui,
J. Stainer: Machine Learning with Adversaries, NeurIPS 2017, arXiv 1703.02757 (Krum, section 4). None of them weighs
clients by their examples, since a client says its own number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from federation.errors import RoundError
from federation.records import Tensors

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
            f"krum with byzantine={byzantine} needs at least {byzantine + 3} updates, {len(clients)} came; "
            "lower byzantine or raise minimum_clients"
        )
    flat = torch.stack([torch.cat([value.flatten().double() for value in client.values()]) for client in clients])
    squared = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
    squared.fill_diagonal_(torch.inf)
    return int(squared.sort(1).values[:, :neighbours].sum(1).argmin())


def _by_coordinate(rule: Rule, values: Tensor, trim: float) -> Tensor:
    return median(values) if rule == "median" else trimmed_mean(values, trim)
