"""Regression without torch: one number per example, such as steps per minute or a heart rate.

Every score comes from sums of z = (value − center) / spread that add over batches and clients. The mean absolute error
of the best constant answer, the median, can't be computed from sums. Counts and sums of z in cells of an eighth of a
spread give it for every constant at a cell's edge, and a model must beat the best of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gaitway.tasks.definition import Answers, Arrays, Judgement, TargetKind, TaskDefinition, TaskError
from gaitway.tasks.soundness import MIN_EXAMPLES, Metric, Soundness

METRICS: Mapping[str, Metric] = {
    "mae": Metric("mean absolute error", "MAE", higher_is_better=False, is_share=False),
    "r2": Metric("R²", "R²", is_share=False),
}

CELLS = 128
"""Cells of an eighth of a spread from −8 to +8 spreads; values outside fall into the first and last."""
CELLS_PER_SPREAD = 8
EDGES = np.arange(1, CELLS) / CELLS_PER_SPREAD - CELLS / CELLS_PER_SPREAD / 2
"""Inner edges of the cells (CELLS − 1,): constant answers whose error is known exactly."""
MIN_GAIN = 0.1
"""Share of the gap between the best constant answer and no error that a model must close, as in classification."""
CLOSE = 0.1
"""Share of a spread: answers of two copies of a model this close count as equal."""
MAX_NUMBER = 1e5
"""Largest center and spread; scores up to ten times as large can be reported."""


def number_sums(z: npt.NDArray[np.float64], answered: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
    """Sum true and answered numbers (n,), as z, for `RegressionTask.scores`.

    The torch half computes the same from a batch.
    """
    cell = np.clip(np.floor((z + CELLS / CELLS_PER_SPREAD / 2) * CELLS_PER_SPREAD), 0, CELLS - 1).astype(np.int64)
    return {
        "count": np.array(float(len(z))),
        "absolute_error": np.abs(answered - z).sum(),
        "squared_error": ((answered - z) ** 2).sum(),
        "sum": z.sum(),
        "square": (z**2).sum(),
        "cell_counts": np.bincount(cell, minlength=CELLS).astype(np.float64),
        "cell_sums": np.bincount(cell, weights=z, minlength=CELLS),
    }


def constant_errors(counts: npt.NDArray[Any], sums: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the summed absolute error of answering each of EDGES (CELLS − 1,), from counts and sums of the cells."""
    below_count, below_sum = np.cumsum(counts)[:-1], np.cumsum(sums)[:-1]
    above_count, above_sum = counts.sum() - below_count, sums.sum() - below_sum
    errors: npt.NDArray[np.float64] = EDGES * below_count - below_sum + above_sum - EDGES * above_count
    return errors


@dataclass(frozen=True)
class NumberSoundness(Soundness):
    """Soundness of a regression: mean absolute errors of the model and of the best constant answer, and R²."""

    count: int
    error: float | None
    constant_error: float | None
    r2: float | None = None
    noun: str = "windows"

    metric: ClassVar[str] = "mae"
    kind: ClassVar[Metric] = METRICS[metric]
    trivial_answer: ClassVar[str] = "of always answering the best constant"

    @property
    def examples(self) -> int:
        """Examples in the holdout."""
        return self.count

    @property
    def score(self) -> float | None:
        """The mean absolute error; None without examples."""
        return self.error

    @property
    def trivial(self) -> float | None:
        """The error of the best constant answer; None without examples."""
        return self.constant_error

    @property
    def undecided_reason(self) -> str:
        """Why these examples can't tell; empty if they can."""
        if not self.count or self.error is None:
            return f"there are no holdout {self.noun}"
        if self.count < MIN_EXAMPLES:
            return f"there are {self.count} holdout {self.noun}, fewer than {MIN_EXAMPLES}"
        return "" if self.constant_error else f"all {self.count} holdout {self.noun} have the same number"

    @property
    def failure_reason(self) -> str:
        """Why the model doesn't work; empty if it does, or if these examples can't tell."""
        if self.undecided_reason:
            return ""
        needed = (1 - MIN_GAIN) * (self.constant_error or 0.0)
        if (self.error or 0.0) < needed:
            return ""
        return (
            f"it is hardly better than always answering one number: mean absolute error {self.error:.4g}, where less "
            f"than {needed:.4g} is asked for"
        )

    @property
    def size(self) -> str:
        """The number of examples."""
        return f"{self.count} holdout {self.noun}"

    def described(self) -> dict[str, Any]:
        """Return the figures, R² among them."""
        return {**super().described(), "r2": self.r2}


@dataclass(frozen=True, kw_only=True)
class RegressionTask(TaskDefinition):
    """One number per example; scored by the mean absolute error in the number's unit, and by R².

    Networks learn (value − center) / spread: give both near the mean and the standard deviation of the numbers, or
    training is slow (a heart rate: center 100, spread 25).
    """

    name: ClassVar[str] = "regression"
    trained_by: ClassVar[str] = "federation.tasks.regression:Regression"
    metric_kinds: ClassVar[Mapping[str, Metric]] = METRICS
    trivial_answer: ClassVar[str] = NumberSoundness.trivial_answer
    target: ClassVar[TargetKind] = TargetKind.NUMBER
    has_classes: ClassVar[bool] = False
    min_labels: ClassVar[int] = 1

    center: float = 0.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        """Reject an impossible scale.

        Raises:
            TaskError: naming the option.
        """
        if not abs(self.center) <= MAX_NUMBER or not 0 < self.spread <= MAX_NUMBER:
            raise TaskError(
                f"regression: center={self.center}, spread={self.spread}: expected a center of at most {MAX_NUMBER:g} "
                "and a spread above 0: about the mean and the standard deviation of the numbers"
            )

    def advice(self, targets: npt.NDArray[Any]) -> str:
        """Suggest a center and spread for these numbers (n,) if the task's are far off."""
        if not len(targets):
            return ""
        mean, deviation = float(np.mean(targets)), float(np.std(targets))
        if not deviation or (abs(mean - self.center) <= 3 * self.spread and 1 / 4 <= deviation / self.spread <= 4):
            return ""
        return (
            f"the numbers to learn have mean {mean:.4g} and standard deviation {deviation:.4g}, but the task has "
            f"center {self.center:g} and spread {self.spread:g}: training will be slow or fail; set "
            f"task.center={mean:.3g} task.spread={deviation:.3g}"
        )

    def scores(self, statistics: Arrays) -> dict[str, float]:
        """Return the mean absolute error and the explained share of the variance (NaN if there is no variance)."""
        count = float(statistics["count"])
        if not count:
            return {"mae": float("nan"), "r2": float("nan")}
        variance = float(statistics["square"]) - float(statistics["sum"]) ** 2 / count
        explained = 1 - float(statistics["squared_error"]) / variance if variance > 0 else float("nan")
        return {"mae": self.spread * float(statistics["absolute_error"]) / count, "r2": explained}

    def trivial(self, statistics: Arrays) -> float | None:
        """Return the mean absolute error of the best constant answer, to an eighth of a spread."""
        count = float(statistics["count"])
        if not count:
            return None
        errors = constant_errors(statistics["cell_counts"], statistics["cell_sums"])
        return self.spread * max(float(errors.min()), 0.0) / count

    def soundness(self, statistics: Arrays, examples: int, labels: Sequence[str], noun: str = "windows") -> Soundness:
        """Judge by the mean absolute error."""
        found = self.scores(statistics)
        if not float(statistics["count"]):
            return NumberSoundness(0, None, None, None, noun)
        r2 = None if np.isnan(found["r2"]) else found["r2"]
        return NumberSoundness(examples, found["mae"], self.trivial(statistics), r2, noun)

    def answers(self, logits: npt.NDArray[np.float32]) -> Answers:
        """Turn a model's output (n, 1) into numbers (n,) in their own unit."""
        return self.center + self.spread * logits[:, 0].astype(np.float64)

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return nothing (n, 0): a number has no classes."""
        return np.empty((len(logits), 0), np.float32)

    def agreement(self, logits: npt.NDArray[np.float32], others: npt.NDArray[np.float32]) -> float:
        """Return the share of answers that differ by at most a tenth of a spread."""
        return float(np.mean(np.abs(logits - others) <= CLOSE))

    @property
    def max_score_loss(self) -> float:
        """A fiftieth of a spread."""
        return 0.02 * self.spread

    def words(self, answer: float, labels: Sequence[str]) -> str:
        """Write a number with its name: `heart rate (beats/min): 112.4`."""
        return f"{labels[0]}: {answer:.4g}"

    def judge(self, truth: Answers, answered: Answers, labels: Sequence[str], noun: str = "windows") -> Judgement:
        """Compare true and answered numbers (n,); an answer's quality is its negated absolute error."""
        scaled = ((numbers.astype(np.float64) - self.center) / self.spread for numbers in (truth, answered))
        statistics = number_sums(*scaled)
        return Judgement(self.soundness(statistics, len(truth), labels, noun), -np.abs(answered - truth))
