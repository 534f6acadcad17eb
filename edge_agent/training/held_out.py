"""A device's held-out examples as evidence: how well models answer them, and what one gains over another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from federation.plan import Plan
from federation.rounds.serving import Evidence
from gaitway.tasks import Quality, TargetKind, TaskDefinition, task_of
from har_pipeline import ClientWindows


class HeldOut(NamedTuple):
    """Examples (n,) that a model wasn't trained on, and what is asked of them."""

    windows: ClientWindows
    task: TaskDefinition
    labels: Sequence[str]

    @classmethod
    def of(cls, plan: Plan, windows: ClientWindows) -> HeldOut:
        """Read the task off a plan."""
        return cls(windows, task_of(plan.task), plan.labels)

    def quality(self, answers: np.ndarray) -> Quality:
        """Return how good each answer is (n,): right or wrong, a share, or an error with a minus sign."""
        return self.task.judge(self.windows.targets, answers, self.labels).quality

    def evidence(self, quality: Quality, shared: Quality) -> Evidence:
        """Compare a model with the shared one by the quality of their answers (n,)."""
        classes, y = self._classes()
        return Evidence.of(y, quality.astype(float), shared.astype(float), self.windows.session, classes)

    def lowest_recall(self, quality: Quality) -> float:
        """Return the lowest over the classes of a model's mean quality; 0 without examples."""
        _, y = self._classes()
        return min((float(quality[y == label].mean()) for label in np.unique(y)), default=0.0)

    def _classes(self) -> tuple[int, np.ndarray]:
        if self.task.target is TargetKind.CLASS:
            return len(self.labels), self.windows.y
        return 1, np.zeros(len(self.windows), np.int64)
