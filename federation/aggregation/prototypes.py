"""Class prototypes, shared by `fedproto`, `fedpr`, `fedpac` and `fedproto_margin`: mean features per class, the loss
that keeps features near them, their mean over clients, and prediction with them.

A class that no client has seen has no prototype: `known` (C,) is 0 there, and the row is never used. A client remembers
its last received prototypes, and its number of examples per class when it last trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from federation.aggregation.averaging import Accumulator, MeanSums
from federation.aggregation.class_statistics import class_prototypes
from federation.errors import SettingsError
from federation.plan import SecureSettings, TrainingConfig
from federation.records import (
    Broadcast,
    ClassStats,
    Client,
    Output,
    SumKind,
    Tensors,
    TrainingStats,
    Tree,
    Update,
    UploadGroup,
)
from federation.records.head import with_linear_head
from federation.records.tree import where
from federation.tasks.task import LabelledFeatures, masked_mean

PredictBy = Literal["prototype", "head"]
PredictClasses = Literal["all", "own"]
Distance = Literal["squared", "squared_sum", "norm"]
"""From features (D,) to their class's prototype: ‖e − P[y]‖²/D, ‖e − P[y]‖² or ‖e − P[y]‖."""

ABSENT_LOGIT = -1e30
"""Logit of a class without a prototype: below every other, and finite, as a softmax and an exported file need it."""

UPLOAD_GROUPS: Mapping[str, UploadGroup] = {"prototypes": UploadGroup.VALUE, "counts": UploadGroup.CLASS_COUNTS}
"""What `uploaded` sends."""


SUM_GROUPS: Mapping[str, SumKind] = {"prototypes": SumKind.WEIGHTED_VALUE, "counts": SumKind.COUNT}
"""What `summand` adds up."""


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
    """Return what a client remembers before its first round: no prototype, and no example of any class."""
    empty = empty_prototypes(training, params)
    return {**empty, "counts": torch.zeros_like(empty["known"])}


def received(broadcast: Broadcast) -> Tree:
    """Return the broadcast's prototypes (C, D) and `known` (C,): what the loss and the prediction need."""
    return {name: broadcast[name] for name in ("prototypes", "known")}


def remember(client: Client, broadcast: Broadcast) -> Client:
    """Let a client predict with the broadcast's prototypes."""
    return client._replace(memory={**client.memory, **received(broadcast)})


def uploaded(stats: ClassStats, dtype: torch.dtype = torch.float32) -> Tree:
    """Return what a client sends: prototypes (C, D) and the examples (C,) behind each; no examples, no prototype."""
    return {"prototypes": class_prototypes(stats, dtype), "counts": stats.counts.to(dtype)}


def upload(client: Client, stats: TrainingStats) -> tuple[Client, Tree]:
    """Return what a client sends, of `stats.after`, and the client, which remembers its examples of each class."""
    sent = uploaded(stats.after, stats.dtype)
    return client._replace(memory={**client.memory, "counts": sent["counts"]}), sent


def squared_error(labelled: LabelledFeatures, round_state: Tree) -> Tensor:
    """Return ‖e − P[y]‖² (m,) of features (m, D) and their classes (m,); 0 for a class without a prototype."""
    prototypes: Tensor = round_state["prototypes"]
    known: Tensor = round_state["known"]
    return ((labelled.features - prototypes[labelled.classes]) ** 2).sum(-1) * known[labelled.classes]


def mean_distance(labelled: LabelledFeatures, round_state: Tree, distance: Distance) -> Tensor:
    """Return the mean distance to P[y] over the features that have a class (Tan et al. 2022, eq. 8).

    Their appendix multiplies λ with ‖e − P[y]‖² (`squared_sum`); their code, and that of FedPAC's authors, with its
    mean over the D features (`squared`), so that the same λ pulls D times less.
    """
    found = squared_error(labelled, round_state)
    if distance == "squared":
        found = found / labelled.features.shape[-1]
    elif distance == "norm":
        away = found > 0  # at a distance of 0 the root has no gradient, and the term none to give
        found = torch.where(away, torch.where(away, found, 1.0).sqrt(), 0.0)
    return masked_mean(found, labelled.mask)


def check_prediction(method: str, predict_by: PredictBy, predict_classes: PredictClasses) -> None:
    """Refuse what only prediction by prototypes can do.

    Raises:
        SettingsError: naming the option.
    """
    if predict_classes == "own" and predict_by == "head":
        raise SettingsError(
            f"{method}: predict_classes=own chooses among prototypes, but predict_by=head; set predict_by=prototype, "
            f"or leave predict_classes at all"
        )


def predict(output: Output, memory: Tree, predict_by: PredictBy, predict_classes: PredictClasses) -> Output:
    """Return logits (B, C, ...) by the nearest prototype that a client remembers, or by its head.

    With "own", only among the classes of which the client had examples when it last trained; among all if it never
    trained.
    """
    if predict_by == "head":
        return output
    among = _candidate_classes(memory, predict_classes)
    return output._replace(logits=nearest(output.features, memory["prototypes"], among, output.logits))


def _candidate_classes(memory: Tree, predict_classes: PredictClasses) -> Tensor:
    counts: Tensor = memory["counts"]
    known: Tensor = memory["known"]
    return known * ((counts > 0) | (counts.sum() == 0)).to(counts.dtype) if predict_classes == "own" else known


def with_nearest_head(client: Client, predict_classes: PredictClasses) -> Client:
    """Give a client's network the head that answers the nearest prototype which it remembers; its own while none is.

    Of features e and prototypes P the logits are 2 P[c] · e − ‖P[c]‖², which is −‖e − P[c]‖² but for ‖e‖², the same
    for all classes. So is 2 M · e − ‖M‖² of the prototypes' mean M, which is taken off: smaller numbers round less.
    """
    among = _candidate_classes(client.memory, predict_classes) > 0
    prototypes = torch.where(among[:, None], client.memory["prototypes"], 0.0)
    mean = prototypes.sum(0) / among.sum().clamp(min=1)
    bias = torch.where(among, (mean**2).sum() - (prototypes**2).sum(-1), ABSENT_LOGIT)
    weight = torch.where(among[:, None], 2 * (prototypes - mean), 0.0)
    new = with_linear_head(client.params, weight, bias)
    return client._replace(params=where(among.any(), new, client.params))


def nearest(features: Tensor, prototypes: Tensor, known: Tensor, otherwise: Tensor) -> Tensor:
    """Score classes by minus the squared distance of features (B, D, ...) to their prototypes (C, D).

    The scores have the shape (B, C, ...) of `otherwise`, which stands in while no prototype is known: those of pixels
    are scaled up from the features' resolution to the logits'.
    """
    pixels = (1,) * (features.dim() - 2)
    # class by class, so that never C times the features are in memory
    scores = torch.stack(
        [-((features - prototype.view(-1, *pixels)) ** 2).sum(1) for prototype in prototypes.unbind()], 1
    )
    if scores.shape[2:] != otherwise.shape[2:]:
        scores = functional.interpolate(scores, size=otherwise.shape[2:], mode="bilinear")
    scores = torch.where(known.view(-1, *pixels) > 0, scores, -torch.inf)
    return torch.where(known.sum() > 0, scores, otherwise)


# ---- server half


def empty_prototypes(training: TrainingConfig, params: Tensors) -> Tree:
    """Return prototypes before the first round: none; where the parameters are, in their dtype."""
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


def summand(update: Update, limits: SecureSettings, *, by_examples: bool) -> Tree:
    """Return what a client adds: weight[c] · p[c] (C, D) and weight[c] (C,), as `fold` weighs classes, cut off."""
    counts = update.tensors["counts"].double()
    weight = counts.round().clamp(max=limits.max_weight) if by_examples else (counts > 0).double()
    cut = update.tensors["prototypes"].double().clamp(-limits.max_value, limits.max_value)
    # a class without examples adds nothing, whatever its row holds
    return {"prototypes": torch.where(weight[:, None] > 0, cut, 0.0) * weight[:, None], "counts": weight}


def class_sums(total: Tree) -> ClassSums:
    """Return the running sums of the sum of all clients' summands."""
    return ClassSums(total["prototypes"], total["counts"])


def finish(state: Tree, sums: ClassSums | None) -> Tree:
    """Return the next prototypes and what is known; a class that nobody had this round keeps its prototype."""
    old, known = state["prototypes"], state["known"]
    if sums is None:
        return {"prototypes": old, "known": known}
    is_known = sums.weight > 0
    mean = sums.total / torch.where(is_known, sums.weight, 1.0)[:, None]
    return {
        "prototypes": torch.where(is_known[:, None], mean.to(old.dtype), old),
        "known": torch.where(is_known, torch.ones_like(known), known),
    }


def min_max_normalized(prototypes: Tensor) -> Tensor:
    """Scale each prototype (C, D) to [0, 1] over its channels; a constant one becomes zeros."""
    low, high = prototypes.amin(-1, keepdim=True), prototypes.amax(-1, keepdim=True)
    return (prototypes - low) / torch.where(high > low, high - low, 1.0)
