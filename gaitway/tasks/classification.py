"""Classification without torch: F1, accuracy, and the test of whether a model works.

Macro-F1 alone isn't enough: with six equal classes a constant answer scores 0.05 and blind guessing 0.17. Neither is
accuracy: if 95% of the windows belong to one class, a good model may be right less often than the constant answer. So a
model must have a higher macro-F1 than the constant answer, and a mean recall (balanced accuracy; K. H. Brodersen, C. S.
Ong, K. E. Stephan, J. M. Buhmann, 'The balanced accuracy and its posterior distribution', ICPR 2010) above 1 / classes,
the mean recall of both the constant answer and guessing for any class sizes. The margin must exceed both chance and a
minimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from gaitway.tasks.definition import Answers, Arrays, Judgement, TaskDefinition
from gaitway.tasks.soundness import MIN_EXAMPLES, Metric, Soundness

Counts = npt.NDArray[np.int64]

METRICS: Mapping[str, Metric] = {"macro_f1": Metric("macro-F1", "F1"), "accuracy": Metric("accuracy", "acc.")}

MIN_CLASSES = 2
"""With one class the constant answer is always right."""
MIN_CLASS_EXAMPLES = 5
"""Per class that counts: five windows that overlap by half are 8 s; fewer may be a stray label."""
CHANCE_Z = 1.645
"""Standard errors by which the mean recall must exceed guessing; a guess does so once in twenty times."""
MIN_RECALL_GAIN = 0.1
"""Share of the gap between guessing and perfection that a model must close. A model that gives one answer for all but a
few windows is useless even if those few are right."""


def confusion(truth: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], classes: int) -> npt.NDArray[np.int64]:
    """Count examples (C, C) by true class (row) and predicted class (column)."""
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def f1_per_class(matrix: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return F1 (C,) of each class from a confusion matrix (C, C); NaN for classes neither present nor predicted."""
    marked = matrix.sum(1) + matrix.sum(0)
    f1 = np.full(len(matrix), np.nan)
    np.divide(2.0 * np.diag(matrix), marked, out=f1, where=marked > 0)
    return f1


class Scores(NamedTuple):
    """Both between 0 and 1."""

    macro_f1: float
    accuracy: float


def scores_of(matrix: npt.NDArray[np.int64]) -> Scores:
    """Score a confusion matrix (C, C), ignoring classes that are neither present nor predicted.

    An empty matrix scores NaN: a client without test examples has no score.
    """
    f1 = f1_per_class(matrix)
    if np.isnan(f1).all():
        return Scores(float("nan"), float("nan"))
    return Scores(float(np.nanmean(f1)), float(np.trace(matrix) / matrix.sum()))


def macro_f1(truth: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64]) -> float:
    """Return the mean F1 over the classes that occur in either vector (n,) of class numbers."""
    classes = 1 + max(truth.max(initial=0), predicted.max(initial=0))
    return scores_of(confusion(truth, predicted, int(classes))).macro_f1


def most_frequent(matrix: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the confusion matrix (C, C) of always answering a matrix's most frequent class."""
    constant = np.zeros_like(matrix)
    constant[:, matrix.sum(1).argmax()] = matrix.sum(1)
    return constant


@dataclass(frozen=True)
class ClassSoundness(Soundness):
    """Soundness of a classifier: `matrix` (C, C) counts the holdout's examples by true class (row) and answered class.

    `part` names the part of the device's examples.
    """

    matrix: Counts
    labels: Sequence[str]
    noun: str = "windows"
    part: str = "holdout"

    metric: ClassVar[str] = "macro_f1"
    kind: ClassVar[Metric] = METRICS[metric]
    trivial_answer: ClassVar[str] = "of always answering the most frequent class"

    @classmethod
    def of(cls, truth: Counts, answered: Counts, labels: Sequence[str], noun: str = "windows") -> ClassSoundness:
        """Compare true and answered classes (n,)."""
        return cls(confusion(truth, answered, len(labels)), labels, noun)

    def of_part(self, part: str) -> ClassSoundness:
        """Name another part of the device's examples: labelled instead of holdout."""
        return replace(self, part=part)

    @property
    def examples(self) -> int:
        """Examples in the holdout."""
        return int(self.matrix.sum())

    @property
    def classes(self) -> int:
        """Classes in the holdout."""
        return int((self.matrix.sum(1) > 0).sum())

    def _metric_of(self, matrix: Counts) -> float:
        return float(getattr(scores_of(matrix), self.metric))

    @property
    def score(self) -> float | None:
        """The primary metric; None without examples."""
        return self._metric_of(self.matrix) if self.matrix.any() else None

    @property
    def trivial(self) -> float | None:
        """The metric of always answering the holdout's most frequent class; None without examples."""
        return self._metric_of(most_frequent(self.matrix)) if self.matrix.any() else None

    @property
    def undecided_reason(self) -> str:
        """Why these examples can't tell a working model from a useless one; empty if they can."""
        if not self.examples:
            return f"there are no {self.part} {self.noun}"
        if self.classes < MIN_CLASSES:
            return f"all {self.examples} {self.part} {self.noun} are of one class"
        if self.examples < MIN_EXAMPLES:
            return f"there are {self.examples} {self.part} {self.noun}, fewer than {MIN_EXAMPLES}"
        if self._counted.sum() < MIN_CLASSES:
            return f"fewer than {MIN_CLASSES} classes have {MIN_CLASS_EXAMPLES} {self.part} {self.noun} or more"
        return ""

    @property
    def failure_reason(self) -> str:
        """Why the model doesn't work; empty if it does, or if these examples can't tell."""
        if self.undecided_reason:
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
        """The number of examples and classes."""
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
        counted: npt.NDArray[np.bool_] = self.matrix.sum(1) >= MIN_CLASS_EXAMPLES
        return counted

    def _recall(self) -> tuple[float, float]:
        """The mean recall over the classes that count, and the minimum that it must exceed.

        A guess answers each class as often as the model does, regardless of the example, so its recalls are independent
        binomial shares.
        """
        counted, size = self._counted, self.matrix.sum(1)
        share = self.matrix.sum(0) / self.matrix.sum()
        variance = (share * (1 - share))[counted] / size[counted]
        recall = np.diag(self.matrix)[counted] / size[counted]
        guess = 1 / counted.sum()
        luck = CHANCE_Z * np.sqrt(variance.sum()) / counted.sum()
        return float(recall.mean()), float(guess + max(luck, MIN_RECALL_GAIN * (1 - guess)))


@dataclass(frozen=True, kw_only=True)
class ClassificationTask(TaskDefinition):
    """One class per example; scored by macro-F1 and accuracy."""

    name: ClassVar[str] = "classification"
    trained_by: ClassVar[str] = "federation.tasks.classification:Classification"
    metric_kinds: ClassVar[Mapping[str, Metric]] = METRICS
    trivial_answer: ClassVar[str] = ClassSoundness.trivial_answer
    class_metric: ClassVar[Metric | None] = Metric("F1", "F1")

    def scores(self, statistics: Arrays) -> dict[str, float]:
        """Return macro-F1 over the classes that are present or predicted, and the accuracy."""
        return scores_of(statistics["confusion"])._asdict()

    def trivial(self, statistics: Arrays) -> float | None:
        """Return the macro-F1 of always answering the most frequent class."""
        matrix = statistics["confusion"]
        return scores_of(most_frequent(matrix)).macro_f1 if matrix.any() else None

    def scores_by_class(self, statistics: Arrays) -> list[float]:
        """Return F1 of each class."""
        found: list[float] = f1_per_class(statistics["confusion"]).tolist()
        return found

    def soundness(self, statistics: Arrays, examples: int, labels: Sequence[str], noun: str = "windows") -> Soundness:
        """Judge by the confusion matrix."""
        return ClassSoundness(statistics["confusion"], labels, noun)

    def judge(self, truth: Answers, answered: Answers, labels: Sequence[str], noun: str = "windows") -> Judgement:
        """Compare true and answered classes (n,): right or wrong."""
        return Judgement(ClassSoundness.of(truth, answered, labels, noun), answered == truth)
