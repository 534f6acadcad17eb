"""A client's last features by example, kept while it measures them: for what sums over classes cannot tell."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from federation.plan import TrainingConfig
from federation.tasks.task import LabelledFeatures

CAPACITY = 1024
"""Examples whose features are kept, the last ones: 256 of 4 bytes of each are a megabyte."""


class FeatureSample(NamedTuple):
    """Features and classes of the last `CAPACITY` examples; the row after them takes what does not count."""

    features: Tensor  # (CAPACITY + 1, D)
    classes: Tensor  # (CAPACITY + 1,) int64
    seen: Tensor  # () int64, examples in all
    class_counts: Tensor  # (C,) of all examples


def empty_sample(training: TrainingConfig, like: Tensor, clients: tuple[int, ...] = ()) -> FeatureSample:
    """Return the sample of no example, where `like` is; with a first dimension where clients are stacked."""
    return FeatureSample(
        like.new_zeros((*clients, CAPACITY + 1, training.feature_dim)),
        like.new_zeros((*clients, CAPACITY + 1), dtype=torch.int64),
        like.new_zeros(clients, dtype=torch.int64),
        like.new_zeros((*clients, training.classes)),
    )


def added(before: FeatureSample, labelled: LabelledFeatures) -> FeatureSample:
    """Add a batch of at most `CAPACITY` examples; past the capacity they take the places of the oldest."""
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
