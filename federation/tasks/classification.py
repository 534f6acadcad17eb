"""Classification: one class an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from federation.records import Batch, Output
from federation.tasks.task import LabelledFeatures, Statistics, Task
from gaitway.metrics import METRICS, Metric, primary_metric
from gaitway.scores import f1_per_class, most_frequent, scores_of


@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """Softmax cross-entropy of logits (B, C) and classes (B,); scored by macro-F1 and accuracy."""

    name: ClassVar[str] = "classification"
    metric_kinds: ClassVar[Mapping[str, Metric]] = METRICS["classification"]
    primary_metric: ClassVar[str] = primary_metric("classification")
    class_metric: ClassVar[Metric | None] = Metric("F1", "F1")

    def loss(self, output: Output, batch: Batch) -> Tensor:
        """Return each example's cross-entropy (B,)."""
        return functional.cross_entropy(output.logits, batch.y, reduction="none")

    def labelled_features(self, output: Output, batch: Batch) -> LabelledFeatures:
        """One row an example: features (B, D), classes (B,)."""
        return LabelledFeatures(output.features, batch.y, batch.mask)

    def prediction(self, output: Output) -> Tensor:
        """Return the likeliest class of each example (B,)."""
        return output.logits.argmax(-1)

    def statistics(self, output: Output, batch: Batch) -> Statistics:
        """Count examples by true (row) and predicted (column) class."""
        return {"confusion": confusion(batch.y, self.prediction(output), batch.mask, output.logits.shape[-1])}

    def no_statistics(self, classes: int) -> Statistics:
        """No example of any class."""
        return {"confusion": torch.zeros(classes, classes, dtype=torch.int64)}

    def metrics(self, statistics: Statistics) -> dict[str, float]:
        """Macro-F1 over the classes that are present or predicted, and the share of right answers."""
        return scores_of(statistics["confusion"].cpu().numpy())._asdict()

    def class_scores(self, statistics: Statistics) -> list[float]:
        """F1 of each class."""
        scores: list[float] = f1_per_class(statistics["confusion"].cpu().numpy()).tolist()
        return scores

    def trivial_score(self, statistics: Statistics) -> float | None:
        """Macro-F1 of always answering the most frequent class."""
        matrix = statistics["confusion"].cpu().numpy()
        return scores_of(most_frequent(matrix)).macro_f1 if matrix.any() else None

    def mismatch(self, output: Output, batch: Batch) -> str | None:
        """Want logits (B, C) and one class an example."""
        if output.logits.dim() == 2 and batch.y.dim() == 1:
            return None
        return (
            "classification needs logits (examples, classes) and one class an example; the network gave "
            f"{tuple(output.logits.shape)} for targets of shape {tuple(batch.y.shape)}"
        )


def confusion(truth: Tensor, predicted: Tensor, weight: Tensor, classes: int) -> Tensor:
    """Count (C, C) what has weight 1 by true (row) and predicted (column) class; all three have one shape."""
    counted = weight.flatten() > 0
    place = torch.where(counted, truth.flatten().long() * classes + predicted.flatten(), 0)
    none = torch.zeros(classes * classes, dtype=torch.int64, device=truth.device)
    return none.scatter_add(0, place, counted.long()).view(classes, classes)
