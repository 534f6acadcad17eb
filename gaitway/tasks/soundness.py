"""Whether a model has learnt anything at all: it must beat its task's trivial answer, and guessing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from gaitway.tasks.metric import Metric

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
