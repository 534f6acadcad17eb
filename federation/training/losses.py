"""Masked losses and per-class statistics, all pure functions of tensors."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from federation.plan import TrainingConfig
from federation.records import Batch, ClassStats, Output, TrainingStats


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of values (B,) over the rows with mask 1; 0 where there are none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def cross_entropy(output: Output, batch: Batch) -> Tensor:
    """Softmax cross-entropy, mean over the batch's real rows."""
    return masked_mean(functional.cross_entropy(output.logits, batch.y, reduction="none"), batch.mask)


def class_stats(output: Output, batch: Batch, classes: int) -> ClassStats:
    """Sum the features (B, D) of each class over the batch's real rows."""
    features = output.features.detach()
    one_hot = functional.one_hot(batch.y, classes).to(features.dtype) * batch.mask[:, None].to(features.dtype)
    square = (features**2).sum(-1)
    return ClassStats(one_hot.sum(0), one_hot.T @ features, one_hot.T @ square)


def class_prototypes(stats: ClassStats) -> Tensor:
    """Mean feature of each class (C, D); where count is 0 the row is meaningless and must be masked."""
    return stats.total / stats.counts.clamp(min=1)[:, None]


def empty_class_stats(training: TrainingConfig, like: Tensor, clients: tuple[int, ...] = ()) -> ClassStats:
    """Empty statistics, for a method that asked for none; with a first dimension where clients are stacked."""
    zeros = like.new_zeros((*clients, training.classes))
    return ClassStats(zeros, like.new_zeros((*clients, training.classes, training.feature_dim)), zeros)


def empty_training_stats(training: TrainingConfig, like: Tensor) -> TrainingStats:
    """What a round of one client measures that has not trained."""
    empty = empty_class_stats(training, like)
    return TrainingStats(empty, empty, like.new_zeros(()))
