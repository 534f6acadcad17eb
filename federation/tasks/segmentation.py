"""Semantic segmentation: one class per pixel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from federation.records import Batch, Output
from federation.tasks.classification import confusion
from federation.tasks.task import LabelledFeatures, Statistics, Task
from gaitway.tasks.segmentation import SegmentationTask


@dataclass(frozen=True, kw_only=True)
class Segmentation(SegmentationTask, Task):
    """Softmax cross-entropy of logits (n, C, H, W) and classes (n, H, W), the mean over an image's labelled pixels.

    Features (n, D, h, w) may be of a lower resolution: their classes are those of the nearest pixels of the targets.
    """

    def loss(self, output: Output, batch: Batch) -> Tensor:
        """Return each image's mean cross-entropy (n,) over its labelled pixels; 0 where it has none."""
        labelled = self._labelled(batch.y)
        wanted = torch.where(labelled, batch.y, 0).long()
        pixels = -functional.log_softmax(output.logits, 1).gather(1, wanted[:, None])[:, 0] * labelled
        return pixels.sum((1, 2)) / labelled.sum((1, 2)).clamp(min=1)

    def labelled_features(self, output: Output, batch: Batch) -> LabelledFeatures:
        """Return one row a pixel of the features: (n·h·w, D)."""
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
        """Count no pixel of any class."""
        return {"confusion": torch.zeros(classes, classes, dtype=torch.int64)}

    def class_counts(self, targets: Tensor, classes: int) -> list[int] | None:
        """Count the labelled pixels of each class."""
        return super().class_counts(targets[self._labelled(targets)], classes)

    def partition_label(self, targets: Tensor) -> Tensor:
        """Return the class of most pixels of each image, the lowest of equals; the background if it has no other."""
        found = (self.class_of_mask(mask) for mask in targets.cpu().numpy())
        otherwise = self.background or 0
        return torch.tensor([otherwise if label is None else label for label in found], dtype=torch.int64)

    def mismatch(self, output: Output, batch: Batch) -> str | None:
        """Want logits (n, C, H, W) and features (n, D, h, w) for classes (n, H, W)."""
        logits, features, targets = (tuple(part.shape) for part in (output.logits, output.features, batch.y))
        if len(logits) == len(features) == 4 and (logits[0], *logits[2:]) == targets:
            return None
        return (
            "segmentation needs logits (images, classes, height, width), features (images, length, lower height, "
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
