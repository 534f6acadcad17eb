"""Whether a model has learnt anything at all: it must beat its task's trivial answer, and guessing.

Of classification, macro-F1 alone does not tell: over six classes of one size the constant answer has 0.05 and blind
guessing 0.17. Accuracy alone does not either: where 95 % of the windows are of one class, a good model may well be
right less often than the constant answer. So a model must have a higher macro-F1 than the constant answer, and a mean
recall (balanced accuracy; K. H. Brodersen, C. S. Ong, K. E. Stephan, J. M. Buhmann, 'The balanced accuracy and its
posterior distribution', ICPR 2010) above 1 / classes, which is what both the constant answer and guessing have however
skewed the classes are, by more than luck and by more than nothing.

Of segmentation the same holds for mIoU and the recall of pixels; luck is no matter over so many pixels, but pictures
are few, so that as many are asked for as windows. Of masked reconstruction the error must be lower than that of
answering each channel's mean, which needs no network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gaitway.metrics import metric_of, primary_metric, trivial_answer
from gaitway.scores import confusion, most_frequent, pixel_scores_of, scores_of

Counts = npt.NDArray[np.int64]

CLASSES = 2
"""Over one class the constant answer is always right."""
CLASS_WINDOWS = 5
"""Of a class that counts: five windows that overlap by half are 8 s; fewer may be a stray label."""
WINDOWS = 20
"""In all: of two classes of ten windows each, a guess finds more than 68 % once in twenty times; of fewer, more."""
LUCK = 1.645
"""Standard errors of guessing that the mean recall must exceed: a guess does so once in twenty times."""
LEAST = 0.1
"""Share of the way from guessing to no error that it must be ahead: a model that answers one class but for a few
windows is as useless as one that always does, also if those few are right."""


class Soundness(ABC):
    """What a holdout says about a model, whatever its task is."""

    task: ClassVar[str]

    @property
    def metric(self) -> str:
        """Name of the task's primary metric."""
        return primary_metric(self.task)

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
    def obstacle(self) -> str:
        """Why these examples cannot tell a model that works from one that does not; empty if they can."""

    @property
    @abstractmethod
    def fault(self) -> str:
        """Why the model does not work, in words; empty if it does, or if these examples cannot tell."""

    @property
    @abstractmethod
    def size(self) -> str:
        """How large the holdout is, in words."""

    @property
    def works(self) -> bool | None:
        """Whether the model works; None where these examples cannot tell."""
        return None if self.obstacle else not self.fault

    @property
    def words(self) -> str:
        """The figures in words; empty without examples."""
        if self.score is None:
            return ""
        label = metric_of(self.metric).label
        return f"{label} {self.score:.3f} on {self.size} against {self.trivial:.3f} {trivial_answer(self.metric)}"

    def described(self) -> dict[str, Any]:
        """Return the figures for the registry and `summary.json`."""
        return {
            "metric": self.metric,
            "score": self.score,
            "trivial": self.trivial,
            "checked": not self.obstacle,
            "windows": self.examples,
        }


@dataclass(frozen=True)
class ClassSoundness(Soundness):
    """Of classification: `matrix` (C, C) counts the holdout's examples by true (row) and answered class.

    `part` says which of the device's examples they are.
    """

    matrix: Counts
    labels: Sequence[str]
    noun: str = "windows"
    part: str = "holdout"

    task: ClassVar[str] = "classification"

    @classmethod
    def of(cls, truth: Counts, answered: Counts, labels: Sequence[str], noun: str = "windows") -> ClassSoundness:
        """Compare true and answered classes (n,)."""
        return cls(confusion(truth, answered, len(labels)), labels, noun)

    @property
    def examples(self) -> int:
        """Examples in the holdout."""
        return int(self.matrix.sum())

    @property
    def classes(self) -> int:
        """Classes in the holdout."""
        return int((self.matrix.sum(1) > 0).sum())

    def _metric_of(self, matrix: Counts) -> float:
        return float(scores_of(matrix)._asdict()[self.metric])

    @property
    def score(self) -> float | None:
        """The primary metric; None without examples."""
        return self._metric_of(self.matrix) if self.matrix.any() else None

    @property
    def trivial(self) -> float | None:
        """That of always answering the holdout's most frequent class; None without examples."""
        return self._metric_of(most_frequent(self.matrix)) if self.matrix.any() else None

    @property
    def obstacle(self) -> str:
        """Why these examples cannot tell a model that works from one that does not; empty if they can."""
        if not self.examples:
            return f"there are no {self.part} {self.noun}"
        if self.classes < CLASSES:
            return f"all {self.examples} {self.part} {self.noun} are of one class"
        if self.examples < WINDOWS:
            return f"there are {self.examples} {self.part} {self.noun}, fewer than {WINDOWS}"
        if self._counted.sum() < CLASSES:
            return f"fewer than {CLASSES} classes have {CLASS_WINDOWS} {self.part} {self.noun} or more"
        return ""

    @property
    def fault(self) -> str:
        """Why the model does not work, in words; empty if it does, or if these examples cannot tell."""
        if self.obstacle:
            return ""
        answered = self.matrix.sum(0)
        if (answered > 0).sum() == 1:
            return f"it answers {self.labels[int(answered.argmax())]!r} whatever it sees"
        if (self.score or 0.0) <= (self.trivial or 0.0):
            return "it is not better than always answering the most frequent class"
        found, needed = self._recall()
        if found <= needed:
            return (
                f"it is hardly better than guessing: mean recall {found:.3f}, where more than {needed:.3f} is asked for"
            )
        return ""

    @property
    def size(self) -> str:
        """How many examples of how many classes."""
        classes = "1 class" if self.classes == 1 else f"{self.classes} classes"
        return f"{self.examples} {self.part} {self.noun} of {classes}"

    def described(self) -> dict[str, Any]:
        """Return the figures; `labels` name the rows (true) and columns (answered) of `confusion`."""
        return {
            **super().described(),
            "classes": self.classes,
            "confusion": self.matrix.tolist() if self.examples else None,
            "labels": list(self.labels) if self.examples else None,
        }

    @property
    def _counted(self) -> npt.NDArray[np.bool_]:
        counted: npt.NDArray[np.bool_] = self.matrix.sum(1) >= CLASS_WINDOWS
        return counted

    def _recall(self) -> tuple[float, float]:
        """Mean recall over the classes that count, and the one that it must exceed.

        A guess answers each class as often as the model does, whatever the example is: its recalls are independent
        binomial shares.
        """
        counted, size = self._counted, self.matrix.sum(1)
        share = self.matrix.sum(0) / self.matrix.sum()
        variance = (share * (1 - share))[counted] / size[counted]
        recall = np.diag(self.matrix)[counted] / size[counted]
        guess = 1 / counted.sum()
        luck = LUCK * np.sqrt(variance.sum()) / counted.sum()
        return float(recall.mean()), float(guess + max(luck, LEAST * (1 - guess)))


@dataclass(frozen=True)
class PixelSoundness(ClassSoundness):
    """Of segmentation: `matrix` counts labelled pixels, those of `pictures` pictures."""

    noun: str = "pictures"
    pictures: int = 0

    task: ClassVar[str] = "segmentation"

    @property
    def examples(self) -> int:
        """Pictures in the holdout."""
        return self.pictures

    def _metric_of(self, matrix: Counts) -> float:
        return float(pixel_scores_of(matrix)._asdict()[self.metric])


@dataclass(frozen=True)
class RestorationSoundness(Soundness):
    """Of masked reconstruction: mean squared errors of the model, and of answering each channel's mean."""

    windows: int
    error: float | None
    mean_answer: float | None

    task: ClassVar[str] = "masked_reconstruction"

    @property
    def examples(self) -> int:
        """Windows in the holdout."""
        return self.windows

    @property
    def score(self) -> float | None:
        """The mean squared error; None without examples."""
        return self.error

    @property
    def trivial(self) -> float | None:
        """That of answering each channel's mean; None without examples."""
        return self.mean_answer

    @property
    def obstacle(self) -> str:
        """Why these examples cannot tell; empty if they can."""
        if not self.windows or self.error is None:
            return "there are no holdout windows"
        return f"there are {self.windows} holdout windows, fewer than {WINDOWS}" if self.windows < WINDOWS else ""

    @property
    def fault(self) -> str:
        """Why the model does not work, in words; empty if it does, or if these examples cannot tell."""
        if self.obstacle or (self.error or 0.0) < (self.mean_answer or 0.0):
            return ""
        return "it restores what was hidden no better than each channel's mean"

    @property
    def size(self) -> str:
        """How many windows."""
        return f"{self.windows} holdout windows"


def soundness_of(
    task: str,
    statistics: Mapping[str, npt.NDArray[Any]],
    examples: int,
    labels: Sequence[str],
    *,
    score: float | None = None,
    trivial: float | None = None,
    noun: str = "windows",
) -> Soundness:
    """Judge by a task's statistics of the holdout; `score` and `trivial` are the task's own of them."""
    if task == "masked_reconstruction":
        return RestorationSoundness(examples, None if score is None or np.isnan(score) else score, trivial)
    if task == "segmentation":
        return PixelSoundness(statistics["confusion"], labels, noun, pictures=examples)
    return ClassSoundness(statistics["confusion"], labels, noun)
