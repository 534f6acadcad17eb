"""What is measured of each task, by name: without torch, so that devices, the server and pages can say it.

`federation.tasks` has what computes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Metric(NamedTuple):
    """How a metric is read and shown; a share lies between 0 and 1 and is shown in percent."""

    label: str
    short: str
    higher_is_better: bool = True
    is_share: bool = True

    @property
    def unit(self) -> str:
        """What stands behind the name."""
        return " (%)" if self.is_share else ""

    @property
    def factor(self) -> float:
        """What a number is multiplied by."""
        return 100.0 if self.is_share else 1.0

    @property
    def largest(self) -> float:
        """What no honest measurement exceeds; of what is no share, far more than of any normalized input."""
        return 1.0 if self.is_share else 1e6

    def text(self, value: float | None) -> str:
        """Write a number: shares in percent with two decimals, others with four; `–` for none."""
        if value is None or math.isnan(value):
            return "–"
        return f"{100 * value:.2f}" if self.is_share else f"{value:.4f}"

    def difference_text(self, difference: float) -> str:
        """Write a difference with its sign, of shares in percentage points."""
        text = f"{100 * difference:+.2f}" if self.is_share else f"{difference:+.4f}"
        return text.replace("-", "−")

    def gain(self, score: float, other: float) -> float:
        """Return by how much a score is better than another; below 0 where it is worse."""
        return score - other if self.higher_is_better else other - score


METRICS: Mapping[str, Mapping[str, Metric]] = {
    "classification": {"macro_f1": Metric("macro-F1", "F1"), "accuracy": Metric("accuracy", "acc.")},
    "segmentation": {"mean_iou": Metric("mIoU", "mIoU"), "pixel_accuracy": Metric("pixel accuracy", "px. acc.")},
    "masked_reconstruction": {
        "mse": Metric("mean squared error", "MSE", higher_is_better=False, is_share=False),
    },
}
"""By task; the primary one first, by which rounds are chosen and models compared."""

TRIVIAL_ANSWERS: Mapping[str, str] = {
    "classification": "of always answering the most frequent class",
    "segmentation": "of answering the most frequent class for every pixel",
    "masked_reconstruction": "of answering each channel's mean",
}
"""By task: what needs no learning, and what a model must beat."""

UNSERVED = frozenset({"masked_reconstruction"})
"""Tasks of which a device has no use by itself: it trains, and neither exports nor judges a model."""

UNLABELLED = frozenset({"masked_reconstruction"})
"""Tasks that learn from examples without a class."""

TRIVIAL = "trivial"
"""Suffix of the name under which a device reports the trivial answer's score."""


def primary_metric(task: str) -> str:
    """Name the metric by which rounds of a task are chosen, and models compared."""
    return next(iter(METRICS[task]))


def metric_of(name: str) -> Metric:
    """Return a metric by its name; one that is not known is shown as it is called."""
    return next((found[name] for found in METRICS.values() if name in found), Metric(name, name))


def task_name(task: Mapping[str, Any]) -> str:
    """Return the name of a plan's task; an unknown one is left to whoever builds the task to refuse."""
    name = str(task.get("name", ""))
    return name if name in METRICS else "classification"


def is_served(task: Mapping[str, Any]) -> bool:
    """Whether devices use what is learnt in a plan's task, and so export, judge and adopt models."""
    return task.get("name") not in UNSERVED


def has_classes(task: Mapping[str, Any]) -> bool:
    """Whether a plan's task learns classes, and so from labelled examples alone."""
    return task.get("name") not in UNLABELLED


def trivial_answer(metric: str) -> str:
    """Say whose score a primary metric is held against."""
    return next((TRIVIAL_ANSWERS[task] for task in METRICS if primary_metric(task) == metric), "of a trivial answer")
