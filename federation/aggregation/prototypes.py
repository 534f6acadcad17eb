"""Class prototypes: mean features per class, the pull towards them, their mean over clients, and prediction by them.

A class that nobody has seen has no prototype: `known` (C,) is 0 there, and the row is never used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from federation.plan import TrainingConfig
from federation.records import ClassStats, Tensors, Tree, Update
from federation.training.losses import class_prototypes


def uploaded(stats: ClassStats) -> Tree:
    """What a client sends: its prototypes (C, D), and the examples (C,) behind each; no examples, no prototype."""
    return {"prototypes": class_prototypes(stats), "counts": stats.counts}


def empty_prototypes(training: TrainingConfig, params: Tensors) -> Tree:
    """Prototypes before the first round: none; where the parameters are, in their dtype."""
    like = next(iter(params.values()))
    return {
        "prototypes": like.new_zeros(training.classes, training.feature_dim),
        "known": like.new_zeros(training.classes),
    }


def squared_error(features: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """‖e − P[y]‖² of features (B, D) and classes y (B,): (B,), 0 for a class without a prototype."""
    return ((features - prototypes[y]) ** 2).sum(-1) * known[y]


def nearest(features: Tensor, prototypes: Tensor, known: Tensor, otherwise: Tensor) -> Tensor:
    """Score classes (B, C) by minus the squared distance to their prototypes; `otherwise` while none is known."""
    scores = -((features[:, None] - prototypes) ** 2).sum(-1)
    scores = torch.where(known > 0, scores, -torch.inf)
    return torch.where(known.sum() > 0, scores, otherwise)


def fold(accumulator: Any, update: Update, *, by_examples: bool) -> Tree:
    """Add one client's prototypes to the running sums, each class weighted by its examples or by presence."""
    tensors = update.tensors
    present = (tensors["counts"] > 0).double()
    weight = (tensors["counts"].double() if by_examples else present) * update.discount
    # a class without examples adds nothing, whatever its row holds
    sums = torch.where(present[:, None] > 0, tensors["prototypes"].double(), 0.0) * weight[:, None]
    if accumulator is None:
        return {"sum": sums, "weight": weight}
    return {"sum": accumulator["sum"] + sums, "weight": accumulator["weight"] + weight}


def finish(state: Tree, accumulator: Tree) -> Tree:
    """Return the next prototypes and what is known; a class that nobody had this round keeps its prototype."""
    came = accumulator["weight"] > 0
    mean = accumulator["sum"] / torch.where(came, accumulator["weight"], 1.0)[:, None]
    old, known = state["prototypes"], state["known"]
    return {
        "prototypes": torch.where(came[:, None], mean.to(old.dtype), old),
        "known": torch.where(came, torch.ones_like(known), known),
    }
