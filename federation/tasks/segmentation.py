"""Semantic segmentation: one class a pixel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from federation.errors import SettingsError
from federation.records import Batch, Output
from federation.tasks.classification import confusion
from federation.tasks.task import LabelledFeatures, Statistics, Task
from gaitway.metrics import METRICS, Metric, primary_metric
from gaitway.scores import iou_per_class, most_frequent, pixel_scores_of


@dataclass(frozen=True, kw_only=True)
class Segmentation(Task):
    """Softmax cross-entropy of logits (n, C, H, W) and classes (n, H, W), the mean over a picture's labelled pixels.

    Features (n, D, h, w) may be of a lower resolution: their classes are those of the nearest pixels of the targets.
    """

    name: ClassVar[str] = "segmentation"
    metric_kinds: ClassVar[Mapping[str, Metric]] = METRICS["segmentation"]
    primary_metric: ClassVar[str] = primary_metric("segmentation")
    class_metric: ClassVar[Metric | None] = Metric("IoU", "IoU")
    scored_unit: ClassVar[str] = "pixels"
    target_kinds: ClassVar[frozenset[str]] = frozenset({"mask"})
    most_labels: ClassVar[int] = 1 << 24  # pixels: 4096 x 4096

    ignore_index: int = 255
    """Pixels of this class count nowhere: not in the loss, nor in the scores, nor in class statistics."""
    background: int | None = None
    """The class that a picture is only dealt by where it has no other."""

    def __post_init__(self) -> None:
        """Refuse numbers that no target can have.

        Raises:
            SettingsError: naming the option.
        """
        if self.ignore_index < 0 or (self.background is not None and self.background < 0):
            raise SettingsError(
                f"segmentation: ignore_index={self.ignore_index}, background={self.background}: expected classes of 0 "
                "or more; ignore_index is 255 where no pixel is to be ignored"
            )

    @property
    def outside(self) -> int:
        """No class."""
        return self.ignore_index

    def loss(self, output: Output, batch: Batch) -> Tensor:
        """Return each picture's mean cross-entropy (n,) over its labelled pixels; 0 where it has none."""
        labelled = self._labelled(batch.y)
        wanted = torch.where(labelled, batch.y, 0).long()
        pixels = -functional.log_softmax(output.logits, 1).gather(1, wanted[:, None])[:, 0] * labelled
        return pixels.sum((1, 2)) / labelled.sum((1, 2)).clamp(min=1)

    def labelled_features(self, output: Output, batch: Batch) -> LabelledFeatures:
        """One row a pixel of the features: (n·h·w, D)."""
        classes = nearest(batch.y, output.features.shape[-2:])
        labelled = self._labelled(classes)
        return LabelledFeatures(
            output.features.movedim(1, -1).flatten(0, 2),
            torch.where(labelled, classes, 0).long().flatten(),
            (labelled * batch.mask[:, None, None]).flatten(),
        )

    def prediction(self, output: Output) -> Tensor:
        """Return the likeliest class of each pixel (n, H, W)."""
        return output.logits.argmax(1)

    def statistics(self, output: Output, batch: Batch) -> Statistics:
        """Count labelled pixels by true (row) and predicted (column) class."""
        weight = self._labelled(batch.y) * batch.mask[:, None, None]
        return {"confusion": confusion(batch.y, self.prediction(output), weight, output.logits.shape[1])}

    def no_statistics(self, classes: int) -> Statistics:
        """No pixel of any class."""
        return {"confusion": torch.zeros(classes, classes, dtype=torch.int64)}

    def metrics(self, statistics: Statistics) -> dict[str, float]:
        """Mean IoU over the classes that are present or predicted, and the share of right pixels."""
        return pixel_scores_of(statistics["confusion"].cpu().numpy())._asdict()

    def class_scores(self, statistics: Statistics) -> list[float]:
        """Intersection over union of each class."""
        scores: list[float] = iou_per_class(statistics["confusion"].cpu().numpy()).tolist()
        return scores

    def trivial_score(self, statistics: Statistics) -> float | None:
        """Mean IoU of answering the most frequent class for every pixel."""
        matrix = statistics["confusion"].cpu().numpy()
        return pixel_scores_of(most_frequent(matrix)).mean_iou if matrix.any() else None

    def class_counts(self, targets: Tensor, classes: int) -> list[int] | None:
        """Count the labelled pixels of each class."""
        return super().class_counts(targets[self._labelled(targets)], classes)

    def partition_label(self, targets: Tensor) -> Tensor:
        """Return the class of most pixels of each picture, the lowest of equals; the background if it has no other."""
        return torch.tensor([self._dealt_by(picture) for picture in targets], dtype=torch.int64)

    def _dealt_by(self, picture: Tensor) -> int:
        otherwise = 0 if self.background is None else self.background
        counts = torch.bincount(picture[self._labelled(picture)].long(), minlength=otherwise + 1)
        if self.background is not None:
            counts[self.background] = 0
        return int(counts.argmax()) if counts.any() else otherwise

    def mismatch(self, output: Output, batch: Batch) -> str | None:
        """Want logits (n, C, H, W) and features (n, D, h, w) for classes (n, H, W)."""
        logits, features, targets = (tuple(part.shape) for part in (output.logits, output.features, batch.y))
        if len(logits) == len(features) == 4 and (logits[0], *logits[2:]) == targets:
            return None
        return (
            "segmentation needs logits (pictures, classes, height, width), features (pictures, length, lower height, "
            f"lower width) and a class of each pixel; the network gave {logits} and {features} for targets of shape "
            f"{targets}"
        )

    def _labelled(self, targets: Tensor) -> Tensor:
        return targets != self.ignore_index


def nearest(targets: Tensor, size: torch.Size) -> Tensor:
    """Scale classes (n, H, W) to (n, *size): of each cell the pixel at its centre."""
    height, width = (_centres(old, new, targets) for old, new in zip(targets.shape[-2:], size, strict=True))
    return targets[:, height][:, :, width]


def _centres(old: int, new: int, like: Tensor) -> Tensor:
    return (2 * torch.arange(new, device=like.device) + 1) * old // (2 * new)
