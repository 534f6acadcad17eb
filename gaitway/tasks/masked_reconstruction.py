"""Masked reconstruction without torch: the error must be lower than that of answering each channel's mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gaitway.tasks.definition import Arrays, TargetKind, TaskDefinition
from gaitway.tasks.soundness import MIN_EXAMPLES, Metric, Soundness

METRICS: Mapping[str, Metric] = {
    "mse": Metric("mean squared error", "MSE", higher_is_better=False, is_share=False),
}


@dataclass(frozen=True)
class RestorationSoundness(Soundness):
    """Soundness of a reconstruction: mean squared errors of the model, and of answering each channel's mean."""

    windows: int
    error: float | None
    mean_answer: float | None

    metric: ClassVar[str] = "mse"
    kind: ClassVar[Metric] = METRICS[metric]
    trivial_answer: ClassVar[str] = "of answering each channel's mean"

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
        """The error of answering each channel's mean; None without examples."""
        return self.mean_answer

    @property
    def undecided_reason(self) -> str:
        """Why these examples can't tell; empty if they can."""
        if not self.windows or self.error is None:
            return "there are no holdout windows"
        return (
            f"there are {self.windows} holdout windows, fewer than {MIN_EXAMPLES}"
            if self.windows < MIN_EXAMPLES
            else ""
        )

    @property
    def failure_reason(self) -> str:
        """Why the model doesn't work; empty if it does, or if these examples can't tell."""
        if self.undecided_reason or (self.error or 0.0) < (self.mean_answer or 0.0):
            return ""
        return "it restores what was hidden no better than each channel's mean"

    @property
    def size(self) -> str:
        """The number of windows."""
        return f"{self.windows} holdout windows"


@dataclass(frozen=True, kw_only=True)
class MaskedReconstructionTask(TaskDefinition):
    """Restores the hidden part of an example; scored by the mean squared error. Devices don't use it."""

    name: ClassVar[str] = "masked_reconstruction"
    trained_by: ClassVar[str] = "federation.tasks.masked_reconstruction:MaskedReconstruction"
    metric_kinds: ClassVar[Mapping[str, Metric]] = METRICS
    trivial_answer: ClassVar[str] = RestorationSoundness.trivial_answer
    target: ClassVar[TargetKind] = TargetKind.WINDOW
    has_classes: ClassVar[bool] = False
    is_served: ClassVar[bool] = False

    masked: float = 0.6
    """Share of a window's 8 patches that are hidden, rounded down: 0.6 hides 4 (50 %), 0.625 hides 5 (62.5 %).

    The default is that of Ek et al.'s code (2024), which floors the 60 % of their paper to 4 patches.
    """
    decoder_kernels: tuple[int, ...] = (3, 7, 7, 15)
    decoder_heads: int = 3
    decoder_mlp: int = 384
    decoder_dropout: float = 0.1

    def scores(self, statistics: Arrays) -> dict[str, float]:
        """Return the mean squared error over all hidden values."""
        hidden = float(statistics["hidden"])
        return {"mse": float(statistics["squared_error"]) / hidden if hidden else float("nan")}

    def trivial(self, statistics: Arrays) -> float | None:
        """Return the mean squared error of answering 0, the mean of each normalized channel."""
        hidden = float(statistics["hidden"])
        return float(statistics["square"]) / hidden if hidden else None

    def soundness(self, statistics: Arrays, examples: int, labels: Sequence[str], noun: str = "windows") -> Soundness:
        """Judge by the error."""
        error = self.scores(statistics)["mse"] if statistics["hidden"] else None
        return RestorationSoundness(examples, error, self.trivial(statistics))
