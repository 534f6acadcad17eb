"""Semantic segmentation without torch: intersection over union, and the test of whether a model works.

The rules of classification apply to mIoU and pixel recall. Chance hardly matters with so many pixels, but images are
few, so the minimum number of windows applies to images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from gaitway.tasks.classification import ClassSoundness, Counts, confusion, most_frequent
from gaitway.tasks.definition import Answers, Arrays, Judgement, TargetKind, TaskDefinition, TaskError
from gaitway.tasks.soundness import Metric, Soundness

METRICS: Mapping[str, Metric] = {
    "mean_iou": Metric("mIoU", "mIoU"),
    "pixel_accuracy": Metric("pixel accuracy", "px. acc."),
}


def iou_per_class(matrix: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return intersection over union (C,) of each class from a confusion matrix (C, C); NaN as in `f1_per_class`."""
    shared = np.diag(matrix)
    union = matrix.sum(1) + matrix.sum(0) - shared
    iou = np.full(len(matrix), np.nan)
    np.divide(1.0 * shared, union, out=iou, where=union > 0)
    return iou


class PixelScores(NamedTuple):
    """Both between 0 and 1."""

    mean_iou: float
    pixel_accuracy: float


def pixel_scores_of(matrix: npt.NDArray[np.int64]) -> PixelScores:
    """Score a confusion matrix (C, C) of pixels, ignoring absent classes as in `scores_of`."""
    iou = iou_per_class(matrix)
    if np.isnan(iou).all():
        return PixelScores(float("nan"), float("nan"))
    return PixelScores(float(np.nanmean(iou)), float(np.trace(matrix) / matrix.sum()))


@dataclass(frozen=True)
class PixelSoundness(ClassSoundness):
    """Soundness of a segmentation: `matrix` counts the labelled pixels of `images` images."""

    noun: str = "images"
    images: int = 0

    metric: ClassVar[str] = "mean_iou"
    kind: ClassVar[Metric] = METRICS[metric]
    trivial_answer: ClassVar[str] = "of answering the most frequent class for every pixel"

    @property
    def examples(self) -> int:
        """Images in the holdout."""
        return self.images

    def _metric_of(self, matrix: Counts) -> float:
        return float(getattr(pixel_scores_of(matrix), self.metric))


@dataclass(frozen=True, kw_only=True)
class SegmentationTask(TaskDefinition):
    """One class per pixel; scored by mean IoU and pixel accuracy."""

    name: ClassVar[str] = "segmentation"
    trained_by: ClassVar[str] = "federation.tasks.segmentation:Segmentation"
    metric_kinds: ClassVar[Mapping[str, Metric]] = METRICS
    trivial_answer: ClassVar[str] = PixelSoundness.trivial_answer
    class_metric: ClassVar[Metric | None] = Metric("IoU", "IoU")
    scored_unit: ClassVar[str] = "pixels"
    target: ClassVar[TargetKind] = TargetKind.MASK
    max_labels: ClassVar[int] = 1 << 24  # pixels: 4096 x 4096
    input_kind: ClassVar[str | None] = "image"
    inference_batch: ClassVar[int] = 8
    min_gate_examples: ClassVar[int] = 16
    min_agreement: ClassVar[float] = 0.999

    ignore_index: int = 255
    """Pixels of this class are ignored in the loss, the scores and the class statistics."""
    background: int | None = None
    """The class used for partitioning an image only if it has no other."""

    def __post_init__(self) -> None:
        """Reject numbers that no target can have.

        Raises:
            TaskError: naming the option.
        """
        if self.ignore_index < 0 or (self.background is not None and self.background < 0):
            raise TaskError(
                f"segmentation: ignore_index={self.ignore_index}, background={self.background}: expected classes of 0 "
                "or more; use ignore_index=255 to ignore no pixel"
            )

    @property
    def outside(self) -> int:
        """No class."""
        return self.ignore_index

    def class_of_mask(self, mask: npt.NDArray[Any]) -> int | None:
        """Return the class of most pixels, the lowest in a tie; the background only if there is no other.

        None if no pixel has a class.
        """
        counts = np.bincount(mask[mask != self.ignore_index].ravel(), minlength=(self.background or 0) + 1)
        if not counts.any():
            return None
        if self.background is not None and np.delete(counts, self.background).any():
            counts[self.background] = 0
        return int(counts.argmax())

    def answer_shape(self, example_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return (height, width)."""
        return example_shape[1:]

    def scores(self, statistics: Arrays) -> dict[str, float]:
        """Return the mean IoU over the classes that are present or predicted, and the pixel accuracy."""
        return pixel_scores_of(statistics["confusion"])._asdict()

    def trivial(self, statistics: Arrays) -> float | None:
        """Return the mean IoU of answering the most frequent class for every pixel."""
        matrix = statistics["confusion"]
        return pixel_scores_of(most_frequent(matrix)).mean_iou if matrix.any() else None

    def scores_by_class(self, statistics: Arrays) -> list[float]:
        """Return intersection over union of each class."""
        found: list[float] = iou_per_class(statistics["confusion"]).tolist()
        return found

    def soundness(self, statistics: Arrays, examples: int, labels: Sequence[str], noun: str = "images") -> Soundness:
        """Judge by the confusion matrix of pixels."""
        return PixelSoundness(statistics["confusion"], labels, noun, images=examples)

    def judge(self, truth: Answers, answered: Answers, labels: Sequence[str], noun: str = "images") -> Judgement:
        """Compare true and answered masks (n, height, width) by the mean IoU of each image."""
        matrices = [
            confusion(mask[known], own[known], len(labels))
            for mask, own in zip(truth, answered, strict=True)
            for known in [mask != self.ignore_index]
        ]
        none: Counts = np.zeros((len(labels), len(labels)), np.int64)
        quality = np.array([pixel_scores_of(matrix).mean_iou for matrix in matrices])
        return Judgement(PixelSoundness(sum(matrices, none), labels, noun, images=len(truth)), np.nan_to_num(quality))
