"""A task's metric, and whether a model has learnt anything at all: it must beat the trivial answer, and guessing."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

MIN_EXAMPLES = 20
"""In all: of two classes of ten windows each, a guess finds more than 68 % once in twenty times; of fewer, more."""


class Soundness(ABC):
    """What a holdout says about a model, whatever its task is."""

    metric: ClassVar[str]
    """Name of the task's primary metric."""
    kind: ClassVar[Metric]
    """How it is read."""
    trivial_answer: ClassVar[str]
    """Whose score it must beat, in words that begin with 'of'."""

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
        """The primary metric of the task's trivial answer there; None without examples."""

    @property
    @abstractmethod
    def undecided_reason(self) -> str:
        """Why these examples cannot tell a model that works from one that does not; empty if they can."""

    @property
    @abstractmethod
    def failure_reason(self) -> str:
        """Why the model does not work, in words; empty if it does, or if these examples cannot tell."""

    @property
    @abstractmethod
    def size(self) -> str:
        """How large the holdout is, in words."""

    @property
    def works(self) -> bool | None:
        """Whether the model works; None where these examples cannot tell."""
        return None if self.undecided_reason else not self.failure_reason

    @property
    def words(self) -> str:
        """The figures in words; empty without examples."""
        if self.score is None:
            return ""
        return f"{self.kind.label} {self.score:.3f} on {self.size} against {self.trivial:.3f} {self.trivial_answer}"

    def gain(self, other: Soundness) -> float:
        """Return by how much a model scores better than another one on the same examples."""
        return self.kind.gain(self.score or 0.0, other.score or 0.0)

    def of_part(self, part: str) -> Soundness:
        """Call the examples by another part of the device's: labelled instead of holdout."""
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
