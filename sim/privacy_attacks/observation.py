"""What the server sees of each device under a setting: its numbers, noisy ones, or a sum over several devices.

The numbers are those that secure sums add up (`federation.secure_sums.summation.encoded`). Noise is of the variance of
`federation.privacy.discrete_gaussian`, drawn as a rounded normal number: from a deviation of 4 on the two differ by
less than any attack can see.

How well an attack did under a setting: a score for each device beside what guessing gets, with an interval.
The interval is of the mean over devices: percentiles of 2,000 bootstrap samples of the devices (B. Efron, Bootstrap
methods, Annals of Statistics 7, 1979).

What an attacker has beside what it sees: the windows of half of the devices, and the federation's average.
Devices that work for the server, half of all, lend it their windows; each half is attacked with the other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from federation.seeds import generator

Vector = NDArray[np.float64]


class Setting(NamedTuple):
    """What lies between a device's numbers and the server."""

    key: str  # in attack.json
    label: str
    members: int  # of the sum that the server sees; 1: each device alone
    noise: float = 0.0  # deviation in the sum of all devices' numbers, in bounds of one device's norm

    @property
    def is_sum(self) -> bool:
        """Whether the server sees no single device."""
        return self.members > 1


class Seen(NamedTuple):
    """What the server has of one device: the sum that the device is in, and of whom that is."""

    total: Vector
    members: tuple[str, ...]


def settings_of(devices: int, least: int, noise: float) -> tuple[Setting, ...]:
    """Return clear, noise, a sum of as few as the plan lets, a sum of all, and both."""
    few = min(least, devices)
    sums = [Setting("sum_few", f"secure sum of {few}", few)] if few < devices else []
    return (
        Setting("clear", "clear", 1),
        Setting("noise", f"noise {noise:g}", 1, noise),
        *sums,
        Setting("sum_all", f"secure sum of {devices}", devices),
        Setting("both", f"sum of {devices}, noise {noise:g}", devices, noise),
    )


class Disguise(NamedTuple):
    """What each device does to its numbers before they leave it: a bound on their norm, and noise."""

    bound: float
    deviation: float
    hidden: NDArray[np.bool_]  # (length,) which numbers are clipped and get noise

    @classmethod
    def of(
        cls, setting: Setting, vectors: Mapping[str, Vector], hidden: NDArray[np.bool_], noisy: int
    ) -> Disguise | None:
        """Clip to the devices' median norm; `noisy` devices' noise makes up the setting's. None without noise."""
        if not setting.noise:
            return None
        bound = float(np.median([np.linalg.norm(vector[hidden]) for vector in vectors.values()]))
        return cls(bound, setting.noise * bound / noisy**0.5, hidden)

    def applied(self, vector: Vector, name: str, seed: int) -> Vector:
        """Return the numbers as they leave a device, whole ones as before."""
        norm, result = float(np.linalg.norm(vector[self.hidden])), vector.copy()
        drawn = generator(seed, "noise of an attack", name).normal(0.0, self.deviation, int(self.hidden.sum()))
        scale = min(1.0, self.bound / norm) if norm else 1.0
        result[self.hidden] = np.trunc(vector[self.hidden] * scale) + np.rint(drawn)
        return result


def observe(vectors: Mapping[str, Vector], setting: Setting, disguise: Disguise | None, seed: int) -> dict[str, Seen]:
    """Return what the server has of each device, of the numbers (length,) that each would send."""
    if disguise is not None:
        vectors = {name: disguise.applied(vector, name, seed) for name, vector in vectors.items()}
    seen: dict[str, Seen] = {}
    for group in random_groups(sorted(vectors), setting.members, seed):
        total = np.sum([vectors[name] for name in group], axis=0)
        seen |= dict.fromkeys(group, Seen(total, group))
    return seen


def random_groups(names: Sequence[str], size: int, seed: int) -> list[tuple[str, ...]]:
    """Deal names at random into groups of so many at least; what is left over joins the last one."""
    order = [names[place] for place in generator(seed, "groups of an attack", size).permutation(len(names))]
    groups = [order[at : at + size] for at in range(0, len(order), size)]
    if len(groups) > 1 and len(groups[-1]) < size:
        groups[-2:] = [groups[-2] + groups[-1]]
    return [tuple(group) for group in groups]


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
