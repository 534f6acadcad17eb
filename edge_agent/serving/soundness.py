"""Whether a model has learnt anything at all: it must beat always answering the most frequent class, and guessing.

Macro-F1 alone does not tell: over six classes of one size the constant answer has 0.05 and blind guessing 0.17.
Accuracy alone does not either: where 95 % of the windows are of one class, a good model may well be right less often
than the constant answer. So a model must have a higher macro-F1 than the constant answer, and a mean recall (balanced
accuracy; K. H. Brodersen, C. S. Ong, K. E. Stephan, J. M. Buhmann, 'The balanced accuracy and its posterior
distribution', ICPR 2010) above 1 / classes, which is what both the constant answer and guessing have however skewed the
classes are, by more than luck and by more than nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gaitway.scores import confusion, most_frequent, scores_of

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


class Soundness(NamedTuple):
    """What a holdout says about a model; `matrix` (C, C) counts its windows by true (row) and answered class."""

    matrix: Counts
    labels: Sequence[str]

    @classmethod
    def of(cls, truth: Counts, answered: Counts, labels: Sequence[str]) -> Soundness:
        """Compare true and answered classes (n,)."""
        return cls(confusion(truth, answered, len(labels)), labels)

    @property
    def windows(self) -> int:
        """Windows in the holdout."""
        return int(self.matrix.sum())

    @property
    def classes(self) -> int:
        """Classes in the holdout."""
        return int((self.matrix.sum(1) > 0).sum())

    @property
    def macro_f1(self) -> float | None:
        """Macro-F1; None without windows."""
        return scores_of(self.matrix).macro_f1 if self.windows else None

    @property
    def most_frequent(self) -> float | None:
        """Macro-F1 of always answering the holdout's most frequent class; None without windows."""
        return scores_of(most_frequent(self.matrix)).macro_f1 if self.windows else None

    @property
    def obstacle(self) -> str:
        """Why these windows cannot tell a model that works from one that does not; empty if they can."""
        if not self.windows:
            return "there are no holdout windows"
        if self.classes < CLASSES:
            return f"all {self.windows} holdout windows are of one class"
        if self.windows < WINDOWS:
            return f"there are {self.windows} holdout windows, fewer than {WINDOWS}"
        if self._counted.sum() < CLASSES:
            return f"fewer than {CLASSES} classes have {CLASS_WINDOWS} holdout windows or more"
        return ""

    @property
    def fault(self) -> str:
        """Why the model does not work, in words; empty if it does, or if these windows cannot tell."""
        if self.obstacle:
            return ""
        answered = self.matrix.sum(0)
        if (answered > 0).sum() == 1:
            return f"it answers {self.labels[int(answered.argmax())]!r} whatever it sees"
        if scores_of(self.matrix).macro_f1 <= scores_of(most_frequent(self.matrix)).macro_f1:
            return "it is not better than always answering the most frequent class"
        found, needed = self._recall()
        if found <= needed:
            return (
                f"it is hardly better than guessing: mean recall {found:.3f}, where more than {needed:.3f} is asked for"
            )
        return ""

    @property
    def works(self) -> bool | None:
        """Whether the model works; None where these windows cannot tell."""
        return None if self.obstacle else not self.fault

    @property
    def words(self) -> str:
        """The figures in words; empty without windows."""
        if not self.windows:
            return ""
        classes = "1 class" if self.classes == 1 else f"{self.classes} classes"
        constant = f"{self.most_frequent:.3f} of always answering the most frequent class"
        return f"macro-F1 {self.macro_f1:.3f} on {self.windows} holdout windows of {classes} against {constant}"

    @property
    def _counted(self) -> npt.NDArray[np.bool_]:
        counted: npt.NDArray[np.bool_] = self.matrix.sum(1) >= CLASS_WINDOWS
        return counted

    def _recall(self) -> tuple[float, float]:
        """Mean recall over the classes that count, and the one that it must exceed.

        A guess answers each class as often as the model does, whatever the window is: its recalls are independent
        binomial shares.
        """
        counted, size = self._counted, self.matrix.sum(1)
        share = self.matrix.sum(0) / self.windows
        variance = (share * (1 - share))[counted] / size[counted]
        recall = np.diag(self.matrix)[counted] / size[counted]
        guess = 1 / counted.sum()
        luck = LUCK * np.sqrt(variance.sum()) / counted.sum()
        return float(recall.mean()), float(guess + max(luck, LEAST * (1 - guess)))
