"""Sums of features by class, over examples or over pixels, and a sample of the features; pure functions of tensors.

Sums are in float64. On a CPU they are taken row by row, from the first example to the last, for any batches and number
of threads. So a client in another language gets the same bits with a plain loop over the same features
(`tests/vectors/phone.json`).

`FeatureSample` keeps a client's last features by example, for statistics beyond sums over classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from federation.plan import TrainingConfig
from federation.records import ClassStats
from federation.tasks.task import LabelledFeatures

ROWS = 1 << 14
"""Rows converted to float64 at a time, because millions of pixels would take three times their memory."""


def class_stats(labelled: LabelledFeatures, classes: int, before: ClassStats | None = None) -> ClassStats:
    """Add the features (m, D) of each class, over the rows that count, to the sums `before` them."""
    features = labelled.features
    stats = _nothing(features, classes, features.shape[-1]) if before is None else before
    for part in zip(*(torch.split(values, ROWS) for values in labelled), strict=True):
        stats = _added(stats, LabelledFeatures(*part))
    return stats


def _added(stats: ClassStats, labelled: LabelledFeatures) -> ClassStats:
    counted = labelled.mask > 0
    # masked rows add nothing, whatever their values
    features = torch.where(counted[:, None], labelled.features.detach().double(), 0.0)
    parts = (counted.double(), features, (features**2).sum(-1))
    if features.device.type == "cpu":  # on a CPU, index_add adds the rows in order
        return ClassStats(*(sums.index_add(0, labelled.classes, part) for sums, part in zip(stats, parts, strict=True)))
    # a GPU adds rows in any order of its threads; a matrix product is deterministic
    one_hot = functional.one_hot(labelled.classes, len(stats.counts)).double()
    return ClassStats(*(sums + one_hot.T @ part for sums, part in zip(stats, parts, strict=True)))


def class_prototypes(stats: ClassStats, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return mean feature of each class (C, D); where count is 0 the row is meaningless and must be masked."""
    return (stats.total / stats.counts.clamp(min=1)[:, None]).to(dtype)


def empty_class_stats(training: TrainingConfig, like: Tensor, clients: tuple[int, ...] = ()) -> ClassStats:
    """Return empty statistics on the device of `like`, with a first dimension for stacked clients."""
    return _nothing(like, training.classes, training.feature_dim, clients)


def _nothing(like: Tensor, classes: int, length: int, clients: tuple[int, ...] = ()) -> ClassStats:
    zeros = like.new_zeros((*clients, classes), dtype=torch.float64)
    return ClassStats(zeros, like.new_zeros((*clients, classes, length), dtype=torch.float64), zeros)


CAPACITY = 1024
"""Number of last examples whose features are kept; with 256 float32 features each, this is a megabyte."""


class FeatureSample(NamedTuple):
    """Features and classes of the last `CAPACITY` examples; the row after them receives masked ones."""

    features: Tensor  # (CAPACITY + 1, D)
    classes: Tensor  # (CAPACITY + 1,) int64
    seen: Tensor  # () int64, examples in all
    class_counts: Tensor  # (C,) of all examples


def empty_sample(training: TrainingConfig, like: Tensor, clients: tuple[int, ...] = ()) -> FeatureSample:
    """Return an empty sample on the device of `like`, with a first dimension for stacked clients."""
    return FeatureSample(
        like.new_zeros((*clients, CAPACITY + 1, training.feature_dim)),
        like.new_zeros((*clients, CAPACITY + 1), dtype=torch.int64),
        like.new_zeros(clients, dtype=torch.int64),
        like.new_zeros((*clients, training.classes)),
    )


def added(before: FeatureSample, labelled: LabelledFeatures) -> FeatureSample:
    """Add a batch of at most `CAPACITY` examples; beyond the capacity they replace the oldest."""
    counted = labelled.mask > 0
    order = before.seen + counted.long().cumsum(0) - 1
    place = torch.where(counted, order % CAPACITY, CAPACITY)
    features = labelled.features.detach().to(before.features)
    one_hot = torch.nn.functional.one_hot(labelled.classes, before.class_counts.shape[-1])
    return FeatureSample(
        before.features.scatter(0, place[:, None].expand_as(features), features),
        before.classes.scatter(0, place, labelled.classes),
        before.seen + counted.sum(),
        before.class_counts + (one_hot * counted[:, None]).sum(0),
    )


def rows_of_classes(sample: FeatureSample) -> tuple[Tensor, Tensor]:
    """Return the features (CAPACITY, D), and which class each row has (CAPACITY, C): 0 everywhere where it has none."""
    rows = torch.arange(CAPACITY, device=sample.features.device) < sample.seen
    one_hot = torch.nn.functional.one_hot(sample.classes[:-1], sample.class_counts.shape[-1])
    # what no example has written is 0, and stays out of every product
    return sample.features[:-1], (one_hot * rows[:, None]).to(sample.features)
