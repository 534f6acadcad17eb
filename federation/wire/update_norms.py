"""How far an update moves the model; `federation.aggregation.screening` says what follows from it."""

from __future__ import annotations

import math

import torch

from federation.records import Tree
from federation.tree import flatten

MEASURED = ("params", "prototypes", "variate", "weighted_means")
"""Groups of an upload whose size says how much the client moves; counts, margins and variances differ by nature."""


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
