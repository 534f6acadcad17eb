"""How well an attack did under a setting: a score for each device beside what guessing gets, with an interval.

The interval is of the mean over devices: percentiles of 2,000 bootstrap samples of the devices (B. Efron, Bootstrap
methods, Annals of Statistics 7, 1979).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from federation.seeds import generator

SAMPLES = 2000
CONFIDENCE = 0.95
ROUNDING = 1e-6
"""An advantage that is no larger: the guess itself, whose shares were added up in another order."""


class Estimate(NamedTuple):
    """A mean over devices, and between what it lies with 95 % confidence."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """Return the three numbers."""
        return {name: round(value, 4) for name, value in self._asdict().items()}


@dataclass(frozen=True)
class AttackOutcome:
    """An attack under a setting: scores between 0 and 1 (1: the attacker knows it all), by device."""

    scores: Mapping[str, float]
    chance: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def score(self) -> Estimate:
        """The mean score."""
        return mean_of(list(self.scores.values()))

    @property
    def guessed(self) -> Estimate:
        """The mean of what guessing gets."""
        return mean_of([self.chance[name] for name in self.scores])

    @property
    def advantage(self) -> Estimate:
        """The mean over devices of the score less that of guessing."""
        return mean_of([score - self.chance[name] for name, score in self.scores.items()])

    @property
    def is_chance(self) -> bool:
        """Whether the attacker might as well guess: the interval of the advantage does not lie above 0, or rounding."""
        return self.advantage.low <= ROUNDING

    def to_json(self) -> dict[str, Any]:
        """Return means with their intervals, and each device's score."""
        estimates = {"score": self.score, "chance": self.guessed, "advantage": self.advantage}
        return {
            **{name: estimate.to_json() for name, estimate in estimates.items()},
            "is_chance": self.is_chance,
            "devices": {name: [round(score, 4), round(self.chance[name], 4)] for name, score in self.scores.items()},
            **self.facts,
        }


@dataclass(frozen=True)
class AttackResult:
    """One attack under every setting that it was tried in; `outcomes` go by the settings' keys."""

    key: str
    title: str
    text: str
    score: str  # what the score is
    chance: str  # what guessing is
    outcomes: Mapping[str, AttackOutcome]
    figures: Mapping[str, Any] = field(default_factory=dict)  # what a page may draw besides

    def to_json(self) -> dict[str, Any]:
        """Return what the attack did under each setting, with what its numbers are."""
        outcomes = {key: outcome.to_json() for key, outcome in self.outcomes.items()}
        return {"title": self.title, "score": self.score, "chance": self.chance, "settings": outcomes}


def mean_of(values: list[float]) -> Estimate:
    """Return the mean of devices' values with its bootstrap interval; NaN of none."""
    found: NDArray[np.float64] = np.asarray(values, float)
    if not len(found):
        return Estimate(float("nan"), float("nan"), float("nan"))
    rows = generator(0, "bootstrap", len(found)).integers(0, len(found), (SAMPLES, len(found)))
    edge = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(found[rows].mean(1), [edge, 100 - edge])
    return Estimate(float(found.mean()), float(low), float(high))


def auc(members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return how likely a member scores above another, ties as a half (Mann and Whitney, 1947)."""
    above = (members[:, None] > others[None]).mean() + 0.5 * (members[:, None] == others[None]).mean()
    return float(above)
