"""Sums of features by class, over examples or over pixels; all pure functions of tensors.

Sums are in float64, and on a CPU they are taken row after row, from the first example to the last: however the examples
are cut into batches, and whatever the number of threads. So a client in another language gets equal bits with a plain
loop over equal features (`tests/vectors/phone.json`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from federation.plan import TrainingConfig
from federation.records import ClassStats
from federation.tasks.task import LabelledFeatures

ROWS = 1 << 14
"""Rows that are widened together: pixels come by the million, and in float64 they take twice their memory again."""


def class_stats(labelled: LabelledFeatures, classes: int, before: ClassStats | None = None) -> ClassStats:
    """Add the features (m, D) of each class, over the rows that count, to the sums `before` them."""
    features = labelled.features
    stats = _nothing(features, classes, features.shape[-1]) if before is None else before
    for part in zip(*(torch.split(one, ROWS) for one in labelled), strict=True):
        stats = _added(stats, LabelledFeatures(*part))
    return stats


def _added(stats: ClassStats, labelled: LabelledFeatures) -> ClassStats:
    counted = labelled.mask > 0
    # what does not count adds nothing, whatever it holds
    features = torch.where(counted[:, None], labelled.features.detach().double(), 0.0)
    parts = (counted.double(), features, (features**2).sum(-1))
    if features.device.type == "cpu":  # there index_add takes the rows in their order
        return ClassStats(*(sums.index_add(0, labelled.classes, part) for sums, part in zip(stats, parts, strict=True)))
    # a GPU adds rows in the order in which its threads come; a product is the same every time
    one_hot = functional.one_hot(labelled.classes, len(stats.counts)).double()
    return ClassStats(*(sums + one_hot.T @ part for sums, part in zip(stats, parts, strict=True)))


def class_prototypes(stats: ClassStats, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return mean feature of each class (C, D); where count is 0 the row is meaningless and must be masked."""
    return (stats.total / stats.counts.clamp(min=1)[:, None]).to(dtype)


def empty_class_stats(training: TrainingConfig, like: Tensor, clients: tuple[int, ...] = ()) -> ClassStats:
    """Return statistics of nothing, where `like` is; with a first dimension where clients are stacked."""
    return _nothing(like, training.classes, training.feature_dim, clients)


def _nothing(like: Tensor, classes: int, length: int, clients: tuple[int, ...] = ()) -> ClassStats:
    zeros = like.new_zeros((*clients, classes), dtype=torch.float64)
    return ClassStats(zeros, like.new_zeros((*clients, classes, length), dtype=torch.float64), zeros)
