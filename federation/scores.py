"""Accuracy and macro-F1 from predicted classes, in numpy."""

from __future__ import annotations

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


def scores_of(matrix: npt.NDArray[np.int64]) -> Scores:
    """Score a confusion matrix (C, C); a class that is neither present nor predicted does not count.

    An empty matrix scores NaN: a client without test examples has no score.
    """
    right, present, predicted = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    occurs = (present + predicted) > 0
    if not occurs.any():
        return Scores(float("nan"), float("nan"))
    f1 = 2 * right[occurs] / (present + predicted)[occurs]
    return Scores(float(f1.mean()), float(right.sum() / matrix.sum()))
