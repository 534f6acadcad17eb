"""How far an update moves the model, and what is usual among the updates of a round; in bounded memory.

Differs from clipping: an update that is far out of line is not made smaller but kept out, as in Z. Sun, P. Kairouz,
A. T. Suresh, H. B. McMahan: Can You Really Backdoor Federated Learning?, 2019, arXiv 1911.07963, section 4.
"""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass, field

import torch

from federation.records import Tree
from federation.tree import flatten

MEASURED = ("params", "prototypes", "variate", "weighted_means")
"""Groups of an upload whose size says how much the client moves; counts, margins and variances differ by nature."""

SAMPLE = 1001


def change_norms(upload: Tree, broadcast: Tree) -> dict[str, float]:
    """Return the L2 norm of each measured group: of params their change from the broadcast, of others themselves."""
    return {group: _norm(group, upload, broadcast) for group in MEASURED if group in upload}


def _norm(group: str, upload: Tree, broadcast: Tree) -> float:
    mine = flatten({group: upload[group]})
    start = flatten({group: broadcast[group]}) if group == "params" and group in broadcast else {}
    squares = 0.0
    for name, value in mine.items():
        like = start.get(name)
        moved = value.to(torch.float64, copy=True)
        if like is not None and like.shape == value.shape:
            moved -= like
        squares += float(torch.linalg.vector_norm(moved)) ** 2
    return math.sqrt(squares)


@dataclass
class RunningMedian:
    """The median of what came, from a uniform sample of at most 1,001 of it (J. Vitter, 1985, algorithm R)."""

    count: int = 0
    values: list[float] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def add(self, value: float) -> None:
        """Take one more value."""
        self.count += 1
        if len(self.values) == SAMPLE:
            if self.chance.randrange(self.count) >= SAMPLE:
                return
            self.values.pop(self.chance.randrange(SAMPLE))
        bisect.insort(self.values, value)

    @property
    def median(self) -> float:
        """The (lower) median; 0 of nothing."""
        return self.values[(len(self.values) - 1) // 2] if self.values else 0.0
