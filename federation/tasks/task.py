"""The interface of a task: what a federation learns, and how well it has learnt it.

Methods, engines and evaluation ask the task; none of them names a loss, a class or a score. Everything that training
and evaluation call is a pure function of tensors without a branch on a tensor's value, so that `torch.func.vmap` can
lift it over clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from federation.errors import SettingsError
from federation.records import Batch, Output
from gaitway.metrics import Metric

Statistics = dict[str, Tensor]
"""What metrics are made from; those of batches, and of clients, add leaf by leaf."""


class LabelledFeatures(NamedTuple):
    """Features with the class of each: a row for every example, or for every pixel of the features' resolution."""

    features: Tensor  # (m, D)
    classes: Tensor  # (m,) int64
    mask: Tensor  # (m,) 1 where the row counts, 0 for padding and what has no class


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task: its fields are its options, so it prints, compares and travels as JSON."""

    name: ClassVar[str]
    metric_kinds: ClassVar[Mapping[str, Metric]]
    """What `metrics` returns, by name; the primary one first."""
    primary_metric: ClassVar[str]
    """What rounds are chosen by, and methods compared by."""
    most_labels: ClassVar[int] = 1
    """How many labels an example has at the most; where it is one, each example has one."""
    class_metric: ClassVar[Metric | None] = None
    """What `class_scores` returns for each class; None where a class has no score of its own."""
    has_classes: ClassVar[bool] = True
    """Whether features have classes, so that methods may take prototypes of them."""

    scored_unit: ClassVar[str] = "examples"
    """What class scores count."""
    target_kinds: ClassVar[frozenset[str]] = frozenset({"class"})
    """Which targets it learns, or at least ignores: `class` of an example, or a `mask` with a class of each pixel."""

    @property
    def decoder(self) -> Mapping[str, Any] | None:
        """What the plan's model gets to restore its input with (`models.mae`); None: the model is learnt as it is."""
        return None

    # ---- in training

    @property
    def outside(self) -> int | None:
        """The target of what a picture does not reach, where targets lie as its pixels do, and move with them.

        None where augmentation leaves the targets as they are.
        """
        return None

    @abstractmethod
    def loss(self, output: Output, batch: Batch) -> Tensor:
        """Return what each example is to lose (B,); rows of padding hold anything finite."""

    def mean_loss(self, output: Output, batch: Batch) -> Tensor:
        """Mean loss () over the batch's real rows."""
        return masked_mean(self.loss(output, batch), batch.mask)

    def labelled_features(self, output: Output, batch: Batch) -> LabelledFeatures:
        """Return features and their classes, for class statistics and prototypes.

        Raises:
            SettingsError: if the task has no classes.
        """
        raise SettingsError(f"{self.name} has no classes, so its features have no class statistics")

    # ---- in evaluation

    @abstractmethod
    def prediction(self, output: Output) -> Tensor:
        """Return what the network answers: classes (B, ...), or what it restores."""

    @abstractmethod
    def statistics(self, output: Output, batch: Batch) -> Statistics:
        """Compare a batch's prediction with its targets; padding adds nothing."""

    @abstractmethod
    def no_statistics(self, classes: int) -> Statistics:
        """Return the statistics of no examples, where the plan has that many classes."""

    @abstractmethod
    def metrics(self, statistics: Statistics) -> dict[str, float]:
        """Return each metric by name; NaN where the statistics are of no examples."""

    def trivial_score(self, statistics: Statistics) -> float | None:
        """Return the primary metric of the answer that needs no learning; None where the statistics are of nothing."""
        return None

    # ---- for data and reports

    def class_counts(self, targets: Tensor, classes: int) -> list[int] | None:
        """Count what loss and statistics count, of each class of targets (n, ...); None for a task without classes."""
        return torch.bincount(targets.flatten().long(), minlength=classes).tolist() if self.has_classes else None

    def class_scores(self, statistics: Statistics) -> list[float]:
        """Return the score of each class (C,), NaN for one that is neither present nor predicted; [] without any."""
        return []

    def count_mismatch(self, total: int, examples: int) -> str | None:
        """Say why counts of classes with this sum cannot be those of so many examples; None where they can."""
        if not self.has_classes:
            return f"came, but {self.name} has no classes"
        if self.most_labels == 1:
            return None if total == examples else f"must sum to the {examples} examples, not to {total}"
        most = self.most_labels * examples
        return None if total <= most else f"must sum to {most} at the most in {examples} examples, not to {total}"

    def partition_label(self, targets: Tensor) -> Tensor:
        """Return the class (n,) by which a partition deals examples with these targets (n, ...)."""
        return targets

    def mismatch(self, output: Output, batch: Batch) -> str | None:
        """Say in words why a network's output does not fit the targets; None where it does."""
        return None

    def improves(self, score: float | None, best: float | None) -> bool:
        """Whether a primary metric is better than the best so far; None is no score, and worse than any."""
        if score is None or best is None:
            return score is not None
        return score > best if self.metric_kinds[self.primary_metric].higher_is_better else score < best


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of values (B,) over the rows with mask 1; 0 where there are none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)
