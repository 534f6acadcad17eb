"""Compares models on a device's held-out examples: their scores, gains, and whether one is worse.

Whether a released model is worse than the present one is an exact sign test over independent groups of examples: a
`refused` can halt a rollout, so that it takes significance. What a device prefers by itself is
`federation.rounds.serving`.

Of right and wrong answers that is McNemar's test over stretches of time:

Q. McNemar, 'Note on the sampling error of the difference between correlated proportions or percentages',
Psychometrika 12 (1947); exact, as a sign test. T. G. Dietterich, 'Approximate statistical tests for comparing
supervised classification learning algorithms', Neural Computation 10 (1998), recommends it where both ran once.

The test counts what is independent, and windows are not: neighbours share half of their samples, and a model that
errs in one errs in the next, as the motion goes on. So a stretch of `STRETCH_S` of one session and one activity has
one vote: for the model that is right on more of its windows; where both are right as often it says nothing. Assumed
is that stretches err independently of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from federation.plan import Plan
from federation.rounds.serving import Evidence
from gaitway.tasks import Quality, TargetKind, TaskDefinition, task_of
from har_pipeline import ClientWindows

STRETCH_S = 10.0
"""Some seven windows of 2.56 s that overlap by half."""
LEVEL = 0.05
"""How often two models that are equally good may seem to differ, in the direction that is asked for."""
STRETCHES = f"stretches of {STRETCH_S:g} s"


class Groups(NamedTuple):
    """The number of the group (n,) of each example; groups err independently. `unit` is what they are called."""

    number: npt.NDArray[np.int64]
    unit: str = STRETCHES

    def __len__(self) -> int:
        return int(self.number.max(initial=-1)) + 1


class PairedComparison(NamedTuple):
    """Of `groups`, one model answers better on `better` and worse on `worse`; on the rest as well as the other."""

    groups: int
    better: int
    worse: int
    unit: str = STRETCHES

    @classmethod
    def of(cls, groups: Groups, own: Quality, other: Quality) -> PairedComparison:
        """Compare how well two models answered (n,)."""
        votes = np.zeros(len(groups))
        np.add.at(votes, groups.number, own.astype(np.float64) - other)
        return cls(len(votes), int((votes > 0).sum()), int((votes < 0).sum()), groups.unit)

    @property
    def p_better(self) -> float:
        """How often chance alone gives so many better groups, or more, of those that differ."""
        return tail(self.better, self.better + self.worse)

    @property
    def is_better(self) -> bool:
        """Whether the groups say that it is better."""
        return self.p_better <= LEVEL

    @property
    def is_worse(self) -> bool:
        """Whether the groups say that it is worse."""
        return tail(self.worse, self.better + self.worse) <= LEVEL

    @property
    def words(self) -> str:
        """The counts in words."""
        return (
            f"of {self.groups} {self.unit} it is right more often on {self.better} and less "
            f"often on {self.worse} (p {self.p_better:.3f}, at most {LEVEL:g} shows a gain)"
        )


def by_stretch(windows: ClientWindows) -> Groups:
    """Group windows by their stretches."""
    return Groups(stretches(windows))


def singleton_groups(count: int, unit: str) -> Groups:
    """Let each example be a group of its own."""
    return Groups(np.arange(count), unit)


def stretches(windows: ClientWindows) -> npt.NDArray[np.int64]:
    """Number the stretch (n,) of each window: one session, one class, no longer than `STRETCH_S` from its begin."""
    found = np.zeros(len(windows), np.int64)
    key, begin, number = None, 0.0, -1
    for at in np.lexsort((windows.start_s, windows.y, windows.session)):
        current = (windows.session[at], windows.y[at])
        if current != key or windows.start_s[at] - begin >= STRETCH_S:
            key, begin, number = current, windows.start_s[at], number + 1
        found[at] = number
    return found


def tail(successes: int, trials: int) -> float:
    """Return probability of so many successes or more in fair trials."""
    return float(sum(comb(trials, k) for k in range(successes, trials + 1)) / 2**trials)


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
