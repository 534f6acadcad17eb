"""What an attacker has beside what it sees: the windows of half of the devices, and the federation's average.

Devices that work for the server, half of all, lend it their windows; each half is attacked with the other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from federation.records import Examples, Tensors
from federation.records.head import is_head
from federation.records.tree import select
from federation.seeds import generator
from sim.data.federated_data import joined
from sim.privacy_attacks.attacked_round import AttackedRound
from sim.privacy_attacks.outcome import AttackOutcome

Shares = NDArray[np.float64]
"""Which share of a device's examples is of each class (C,)."""

AUXILIARY = 120
"""Of the attacker's own windows so many are looked at."""
SCORE = "the share of a device's windows whose class is counted right: Σ_c min(guessed share, true share)"
CHANCE = "the mean of all devices' shares, guessed of every device"


def overlap(guessed: Shares, true: Shares) -> float:
    """Return Σ_c min(ŝ_c, s_c): 1 less the total variation."""
    return float(np.minimum(guessed, true).sum())


def halves(attacked: AttackedRound) -> list[tuple[list[str], list[str]]]:
    """Return (attacked devices, devices that work for the server) twice, each half in turn."""
    names = attacked.devices
    order = [names[at] for at in generator(attacked.seed, "halves of an attack").permutation(len(names))]
    middle = len(order) // 2
    parts = sorted(order[:middle]), sorted(order[middle:])
    return [(parts[0], parts[1]), (parts[1], parts[0])]


def auxiliary(attacked: AttackedRound, names: Sequence[str], count: int = AUXILIARY) -> Examples:
    """Return some of these devices' training windows, drawn at random."""
    pool = joined([attacked.data.clients[name].train for name in names])
    rows = generator(attacked.seed, "windows of the attacker", *names).permutation(len(pool.y))[:count]
    return Examples(pool.x[rows], pool.y[rows])


def as_shares(counts: Shares, average: Shares) -> Shares:
    """Return counts (C,) as shares; without a count above 0 the average."""
    positive = np.maximum(counts, 0.0)
    return positive / positive.sum() if positive.sum() > 0 else average


def judged(guessed: Mapping[str, Shares], true: Mapping[str, Shares]) -> AttackOutcome:
    """Hold guessed shares of devices against the true ones."""
    average: Shares = np.mean(list(true.values()), axis=0)
    scores = {name: overlap(guessed[name], shares) for name, shares in true.items()}
    return AttackOutcome(scores, {name: overlap(average, shares) for name, shares in true.items()})


def last_layer(params: Tensors) -> Tensors:
    """Return weight (C, h) and bias (C,) of the last layer, as far as they are there."""
    head = select(params, is_head)
    return dict(list(head.items())[-2:])
