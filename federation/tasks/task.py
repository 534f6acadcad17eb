"""The interface of a task's torch half: loss, statistics and scores.

Methods, engines and evaluation ask the task; none of them names a loss, a class or a score. Everything that training
and evaluation call is a pure function of tensors without a branch on a tensor's value, so that `torch.func.vmap` can
lift it over clients.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from federation.errors import SettingsError
from federation.records import Batch, Output
from gaitway.tasks.definition import Arrays, TaskDefinition

Statistics = dict[str, Tensor]
"""What metrics are made from; those of batches, and of clients, add leaf by leaf."""


class LabelledFeatures(NamedTuple):
    """Features with the class of each: a row for every example, or for every pixel of the features' resolution."""

    features: Tensor  # (m, D)
    classes: Tensor  # (m,) int64
    mask: Tensor  # (m,) 1 where the row counts, 0 for padding and what has no class


@dataclass(frozen=True, kw_only=True)
class Task(TaskDefinition):
    """A task with its torch half: its fields are its options, so it prints, compares and travels as JSON."""

    @property
    def decoder(self) -> Mapping[str, Any] | None:
        """What the plan's model gets to restore its input with (`models.mae`); None: the model is learnt as it is."""
        return None

    # ---- in training

    @abstractmethod
    def loss(self, output: Output, batch: Batch) -> Tensor:
        """Return what each example is to lose (B,); rows of padding hold anything finite."""

    def mean_loss(self, output: Output, batch: Batch) -> Tensor:
        """Return mean loss () over the batch's real rows."""
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

    def metrics(self, statistics: Statistics) -> dict[str, float]:
        """Return each metric by name; NaN where the statistics are of no examples."""
        return self.scores(arrays(statistics))

    def trivial_score(self, statistics: Statistics) -> float | None:
        """Return the primary metric of the answer that needs no learning; None where the statistics are of nothing."""
        return self.trivial(arrays(statistics))

    def class_scores(self, statistics: Statistics) -> list[float]:
        """Return the score of each class (C,), NaN for one that is neither present nor predicted; [] without any."""
        return self.scores_by_class(arrays(statistics))

    # ---- for data and reports

    def class_counts(self, targets: Tensor, classes: int) -> list[int] | None:
        """Count what loss and statistics count, of each class of targets (n, ...); None for a task without classes."""
        return torch.bincount(targets.flatten().long(), minlength=classes).tolist() if self.has_classes else None

    def count_mismatch(self, total: int, examples: int) -> str | None:
        """Say why counts of classes with this sum cannot be those of so many examples; None where they can."""
        if not self.has_classes:
            return f"came, but {self.name} has no classes"
        if self.max_labels == 1:
            return None if total == examples else f"must sum to the {examples} examples, not to {total}"
        most = self.max_labels * examples
        return None if total <= most else f"must sum to {most} at the most in {examples} examples, not to {total}"

    def partition_label(self, targets: Tensor) -> Tensor:
        """Return the class (n,) by which a partition deals examples with these targets (n, ...)."""
        return targets

    def mismatch(self, output: Output, batch: Batch) -> str | None:
        """Say in words why a network's output does not fit the targets; None where it does."""
        return None


def arrays(statistics: Statistics) -> Arrays:
    """Return statistics as arrays on the host."""
    return {name: value.cpu().numpy() for name, value in statistics.items()}


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return mean of values (B,) over the rows with mask 1; 0 where there are none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)
