"""Class prototypes: mean features per class, the loss that holds features near them, their mean over clients, and
prediction by them. What `fedproto`, `fedpr`, `fedpac` and `fedproto_margin` share.

A class that nobody has seen has no prototype: `known` (C,) is 0 there, and the row is never used. A client remembers
the prototypes that it received last, and its examples of each class when it last trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from federation.aggregation.averaging import Accumulator, MeanSums
from federation.errors import SettingsError
from federation.plan import TrainingConfig
from federation.records import Batch, Broadcast, ClassStats, Client, Output, Tensors, Tree, Update, UploadGroup
from federation.training.losses import class_prototypes, masked_mean

PredictBy = Literal["prototype", "head"]
PredictClasses = Literal["all", "own"]

UPLOAD_GROUPS: Mapping[str, UploadGroup] = {"prototypes": UploadGroup.VALUE, "counts": UploadGroup.CLASS_COUNTS}
"""What `uploaded` sends."""


@dataclass(frozen=True)
class ClassSums:
    """Σ weight[c] · p[c] (C, D) in float64, and Σ weight[c] (C,)."""

    total: Tensor
    weight: Tensor


@dataclass(frozen=True, kw_only=True)
class PrototypeSums(Accumulator):
    """Of a method whose clients send prototypes alone."""

    prototypes: ClassSums | None = None


@dataclass(frozen=True, kw_only=True)
class ModelAndPrototypeSums(MeanSums):
    """Of a method whose clients send parameters and prototypes."""

    prototypes: ClassSums | None = None


# ---- client half


def client_memory(training: TrainingConfig, params: Tensors) -> Tree:
    """What a client remembers before its first round: no prototype, and no example of any class."""
    empty = empty_prototypes(training, params)
    return {**empty, "counts": torch.zeros_like(empty["known"])}


def received(broadcast: Broadcast) -> Tree:
    """Return the broadcast's prototypes (C, D) and `known` (C,): what the loss and the prediction need."""
    return {name: broadcast[name] for name in ("prototypes", "known")}


def remember(client: Client, broadcast: Broadcast) -> Client:
    """Let a client predict with the broadcast's prototypes."""
    return client._replace(memory={**client.memory, **received(broadcast)})


def uploaded(stats: ClassStats) -> Tree:
    """What a client sends: its prototypes (C, D), and the examples (C,) behind each; no examples, no prototype."""
    return {"prototypes": class_prototypes(stats), "counts": stats.counts}


def upload(client: Client, stats: ClassStats) -> tuple[Client, Tree]:
    """Return what a client sends, and the client, which remembers its examples of each class."""
    sent = uploaded(stats)
    return client._replace(memory={**client.memory, "counts": sent["counts"]}), sent


def squared_error(output: Output, batch: Batch, round_state: Tree) -> Tensor:
    """‖e − P[y]‖² of a batch's features (B, D) and classes (B,): (B,), 0 for a class without a prototype."""
    prototypes: Tensor = round_state["prototypes"]
    known: Tensor = round_state["known"]
    return ((output.features - prototypes[batch.y]) ** 2).sum(-1) * known[batch.y]


def mean_squared_error(output: Output, batch: Batch, round_state: Tree) -> Tensor:
    """Mean over the batch of mse(e, P[y]) (Tan et al. 2022, eq. 8)."""
    return masked_mean(squared_error(output, batch, round_state) / output.features.shape[-1], batch.mask)


def check_prediction(method: str, predict_by: PredictBy, predict_classes: PredictClasses) -> None:
    """Refuse what only prediction by prototypes can do.

    Raises:
        SettingsError: naming the option.
    """
    if predict_classes == "own" and predict_by == "head":
        raise SettingsError(
            f"{method}: predict_classes=own chooses among prototypes, but predict_by=head: "
            "set predict_by=prototype, or leave predict_classes at all"
        )


def predict(output: Output, memory: Tree, predict_by: PredictBy, predict_classes: PredictClasses) -> Tensor:
    """Score the classes (B, C) by the nearest prototype that a client remembers, or by its head.

    With "own" among the classes of which the client had examples when it last trained; among all, if it never has.
    """
    if predict_by == "head":
        return output.logits
    counts = memory["counts"]
    among = memory["known"]
    if predict_classes == "own":
        among = among * ((counts > 0) | (counts.sum() == 0)).to(counts.dtype)
    return nearest(output.features, memory["prototypes"], among, output.logits)


def nearest(features: Tensor, prototypes: Tensor, known: Tensor, otherwise: Tensor) -> Tensor:
    """Score classes (B, C) by minus the squared distance to their prototypes; `otherwise` while none is known."""
    scores = -((features[:, None] - prototypes) ** 2).sum(-1)
    scores = torch.where(known > 0, scores, -torch.inf)
    return torch.where(known.sum() > 0, scores, otherwise)


# ---- server half


def empty_prototypes(training: TrainingConfig, params: Tensors) -> Tree:
    """Prototypes before the first round: none; where the parameters are, in their dtype."""
    like = next(iter(params.values()))
    return {
        "prototypes": like.new_zeros(training.classes, training.feature_dim),
        "known": like.new_zeros(training.classes),
    }


def fold(before: ClassSums | None, update: Update, *, by_examples: bool) -> ClassSums:
    """Add one client's prototypes to the running sums, each class weighted by its examples or by presence."""
    tensors = update.tensors
    present = (tensors["counts"] > 0).double()
    weight = (tensors["counts"].double() if by_examples else present) * update.discount
    # a class without examples adds nothing, whatever its row holds
    sums = torch.where(present[:, None] > 0, tensors["prototypes"].double(), 0.0) * weight[:, None]
    return ClassSums(sums, weight) if before is None else ClassSums(before.total + sums, before.weight + weight)


def finish(state: Tree, sums: ClassSums | None) -> Tree:
    """Return the next prototypes and what is known; a class that nobody had this round keeps its prototype."""
    old, known = state["prototypes"], state["known"]
    if sums is None:
        return {"prototypes": old, "known": known}
    came = sums.weight > 0
    mean = sums.total / torch.where(came, sums.weight, 1.0)[:, None]
    return {
        "prototypes": torch.where(came[:, None], mean.to(old.dtype), old),
        "known": torch.where(came, torch.ones_like(known), known),
    }


def min_max_normalized(prototypes: Tensor) -> Tensor:
    """Scale each prototype (C, D) to [0, 1] over its channels; a constant one becomes zeros."""
    low, high = prototypes.amin(-1, keepdim=True), prototypes.amax(-1, keepdim=True)
    return (prototypes - low) / torch.where(high > low, high - low, 1.0)
