"""Accuracy, F1 and IoU from predicted classes, and how the clients at the bottom fare, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Scores(NamedTuple):
    """Both between 0 and 1."""

    macro_f1: float
    accuracy: float


def confusion(truth: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], classes: int) -> npt.NDArray[np.int64]:
    """Count examples by true (row) and predicted (column) class: (C, C)."""
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def f1_per_class(matrix: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """F1 (C,) of each class of a confusion matrix (C, C); NaN for one that is neither present nor predicted."""
    marked = matrix.sum(1) + matrix.sum(0)
    f1 = np.full(len(matrix), np.nan)
    np.divide(2.0 * np.diag(matrix), marked, out=f1, where=marked > 0)
    return f1


def scores_of(matrix: npt.NDArray[np.int64]) -> Scores:
    """Score a confusion matrix (C, C); a class that is neither present nor predicted does not count.

    An empty matrix scores NaN: a client without test examples has no score.
    """
    f1 = f1_per_class(matrix)
    if np.isnan(f1).all():
        return Scores(float("nan"), float("nan"))
    return Scores(float(np.nanmean(f1)), float(np.trace(matrix) / matrix.sum()))


def iou_per_class(matrix: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Intersection over union (C,) of each class of a confusion matrix (C, C); NaN as in `f1_per_class`."""
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
    """Score a confusion matrix (C, C) of pixels; as in `scores_of`, a class that is nowhere does not count."""
    iou = iou_per_class(matrix)
    if np.isnan(iou).all():
        return PixelScores(float("nan"), float("nan"))
    return PixelScores(float(np.nanmean(iou)), float(np.trace(matrix) / matrix.sum()))


def macro_f1(truth: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64]) -> float:
    """Return the mean F1 over the classes that occur in either of the two (n,) vectors of class numbers."""
    classes = 1 + max(truth.max(initial=0), predicted.max(initial=0))
    return scores_of(confusion(truth, predicted, int(classes))).macro_f1


def most_frequent(matrix: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the confusion matrix (C, C) of always answering the class that is most frequent in a matrix (C, C)."""
    constant = np.zeros_like(matrix)
    constant[:, matrix.sum(1).argmax()] = matrix.sum(1)
    return constant


def lowest_tenth(scores: Sequence[float]) -> float:
    """Mean of the lowest tenth of the clients' scores (K,): ⌊K/10⌋ of them, one at least; NaN for none."""
    lowest = sorted(scores)[: max(1, len(scores) // 10)]
    return float(np.mean(lowest)) if lowest else float("nan")
