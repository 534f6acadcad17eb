"""A task's metric, and the test that a model has learnt anything: it must beat the trivial answer and guessing."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

MIN_EXAMPLES = 20
"""In total: with two classes of ten windows each, a guess exceeds 68% once in twenty times."""


class Soundness(ABC):
    """The evaluation of a model on a holdout, for any task."""

    metric: ClassVar[str]
    """Name of the task's primary metric."""
    kind: ClassVar[Metric]
    """How the metric is read."""
    trivial_answer: ClassVar[str]
    """The baseline to beat, as a phrase that begins with 'of'."""

    @property
    @abstractmethod
    def examples(self) -> int:
        """Examples in the holdout."""

    @property
    @abstractmethod
    def score(self) -> float | None:
        """The primary metric; None without examples."""

    @property
    @abstractmethod
    def trivial(self) -> float | None:
        """The primary metric of the task's trivial answer; None without examples."""

    @property
    @abstractmethod
    def undecided_reason(self) -> str:
        """Why these examples can't tell a working model from a useless one; empty if they can."""

    @property
    @abstractmethod
    def failure_reason(self) -> str:
        """Why the model doesn't work; empty if it does, or if these examples can't tell."""

    @property
    @abstractmethod
    def size(self) -> str:
        """The holdout's size, as text."""

    @property
    def works(self) -> bool | None:
        """Whether the model works; None if these examples can't tell."""
        return None if self.undecided_reason else not self.failure_reason

    @property
    def words(self) -> str:
        """The figures as text; empty without examples."""
        if self.score is None:
            return ""
        return f"{self.kind.label} {self.score:.3f} on {self.size} against {self.trivial:.3f} {self.trivial_answer}"

    def gain(self, other: Soundness) -> float:
        """Return how much better a model scores than another on the same examples."""
        return self.kind.gain(self.score or 0.0, other.score or 0.0)

    def of_part(self, part: str) -> Soundness:
        """Name another part of the device's examples: labelled instead of holdout."""
        return self

    def described(self) -> dict[str, Any]:
        """Return the figures for the registry and `summary.json`."""
        return {
            "metric": self.metric,
            "score": self.score,
            "trivial": self.trivial,
            "checked": not self.undecided_reason,
            "windows": self.examples,
        }


TRIVIAL = "trivial"
"""Suffix of the name under which a device reports the trivial answer's score."""


class Metric(NamedTuple):
    """How a metric is read and shown; a share is between 0 and 1 and shown in percent."""

    label: str
    short: str
    higher_is_better: bool = True
    is_share: bool = True

    @property
    def unit(self) -> str:
        """The unit after the name."""
        return " (%)" if self.is_share else ""

    @property
    def factor(self) -> float:
        """The factor for display."""
        return 100.0 if self.is_share else 1.0

    @property
    def largest(self) -> float:
        """The limit of honest measurements; for other metrics than shares, far above that of any normalized input."""
        return 1.0 if self.is_share else 1e6

    def text(self, value: float | None) -> str:
        """Write a number: shares in percent with two decimals, others with four; `–` for none."""
        if value is None or math.isnan(value):
            return "–"
        return f"{100 * value:.2f}" if self.is_share else f"{value:.4f}"

    def difference_text(self, difference: float) -> str:
        """Write a difference with its sign, in percentage points for shares."""
        text = f"{100 * difference:+.2f}" if self.is_share else f"{difference:+.4f}"
        return text.replace("-", "−")

    def gain(self, score: float, other: float) -> float:
        """Return how much better a score is than another; negative if it is worse."""
        return score - other if self.higher_is_better else other - score
