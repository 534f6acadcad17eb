"""Classification: one class per example."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from federation.records import Batch, Output
from federation.tasks.task import LabelledFeatures, Statistics, Task
from gaitway.tasks.classification import ClassificationTask


@dataclass(frozen=True, kw_only=True)
class Classification(ClassificationTask, Task):
    """Softmax cross-entropy of logits (B, C) and classes (B,); scored by macro-F1 and accuracy."""

    def loss(self, output: Output, batch: Batch) -> Tensor:
        """Return each example's cross-entropy (B,)."""
        return functional.cross_entropy(output.logits, batch.y, reduction="none")

    def labelled_features(self, output: Output, batch: Batch) -> LabelledFeatures:
        """Return one row an example: features (B, D), classes (B,)."""
        return LabelledFeatures(output.features, batch.y, batch.mask)

    def prediction(self, output: Output) -> Tensor:
        """Return the likeliest class of each example (B,)."""
        return output.logits.argmax(-1)

    def statistics(self, output: Output, batch: Batch) -> Statistics:
        """Count examples by true (row) and predicted (column) class."""
        return {"confusion": confusion(batch.y, self.prediction(output), batch.mask, output.logits.shape[-1])}

    def no_statistics(self, classes: int) -> Statistics:
        """Count no example of any class."""
        return {"confusion": torch.zeros(classes, classes, dtype=torch.int64)}

    def mismatch(self, output: Output, batch: Batch) -> str | None:
        """Want logits (B, C) and one class an example."""
        if output.logits.dim() == 2 and batch.y.dim() == 1 and not batch.y.is_floating_point():
            return None
        return (
            "classification needs logits (examples, classes) and one class an example; the network gave "
            f"{tuple(output.logits.shape)} for targets of shape {tuple(batch.y.shape)} and type {batch.y.dtype}"
        )


def confusion(truth: Tensor, predicted: Tensor, weight: Tensor, classes: int) -> Tensor:
    """Count (C, C) what has weight 1 by true (row) and predicted (column) class; all three have one shape."""
    counted = weight.flatten() > 0
    place = torch.where(counted, truth.flatten().long() * classes + predicted.flatten(), 0)
    none = torch.zeros(classes * classes, dtype=torch.int64, device=truth.device)
    return none.scatter_add(0, place, counted.long()).view(classes, classes)
