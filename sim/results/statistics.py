"""Which differences between methods are more than chance: over the seeds of one federation, and over data sets.

Runs are replicated over seeds: all clients' models of one run descend from one server's model, so that what they have
in common is one draw, however many clients there are. Their differences are shown as spread, never as evidence.

- Paired t: Student, The probable error of a mean, Biometrika 6 (1908); over n seeds with n − 1 degrees of freedom.
- Signs: R. A. Fisher, The design of experiments (1935): all 2ⁿ ways to swap the two methods within seeds, exactly.
- Several tests at once: S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6 (1979).
- Data sets: J. Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 7 (2006), section 3.2.2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
EQUAL = 1e-9  # differences between scores below this come from the order of additions
MAX_FLIPPED = 20
"""Up to so many seeds all 2ⁿ signs are gone through: a million means."""

Floats = npt.NDArray[np.float64]
Scores = Mapping[tuple[int, str], float]
"""Scores by seed and client."""


@cache
def _stats() -> ModuleType:
    """Import scipy.stats where it is needed: that takes a second, and a run tests nothing."""
    from scipy import stats

    found: ModuleType = stats
    return found


class Spread(NamedTuple):
    """How unlike the clients' differences are, each the mean over the common seeds: std, and counts by sign."""

    std: float
    better: int
    equal: int
    worse: int

    @property
    def clients(self) -> int:
        """How many clients both methods have scores of."""
        return self.better + self.equal + self.worse

    def turned(self) -> Spread:
        """Return the same of scores of which less is better."""
        return self._replace(better=self.worse, worse=self.better)


@dataclass(frozen=True)
class PairedTest:
    """Our scores minus theirs under the same seeds, between -1 and 1: the mean over seeds of `by_seed`.

    `low` and `high` bound it with 95 % confidence and `p` is of the same t test; `p_signs` is the exact permutation's,
    2/2ⁿ at the least. None for a single seed, which is no evidence. `p_holm` is what is left of `p` among its sisters.
    """

    difference: float
    seeds: tuple[int, ...]
    by_seed: tuple[float, ...]
    low: float | None
    high: float | None
    p: float | None
    p_signs: float | None
    spread: Spread
    p_holm: float | None = None


class Ranking(NamedTuple):
    """Methods over data sets: average ranks (1 is best), Friedman's χ² and p, and Nemenyi's critical difference."""

    ranks: Mapping[str, float]
    datasets: int
    chi2: float
    p: float
    critical_difference: float


def paired_test(ours: Scores, theirs: Scores) -> PairedTest | None:
    """Compare two methods seed by seed; None where they have no client of one seed in common."""
    by_seed = seed_differences(ours, theirs)
    if not by_seed:
        return None
    differences = np.array(list(by_seed.values()))
    low, high, p = interval(differences)
    return PairedTest(
        difference=float(differences.mean()),
        seeds=tuple(by_seed),
        by_seed=tuple(differences.tolist()),
        low=low,
        high=high,
        p=p,
        p_signs=sign_flip_p(differences),
        spread=_spread(client_differences(ours, theirs)),
    )


def seed_differences(ours: Scores, theirs: Scores) -> dict[int, float]:
    """Return our score minus theirs in each common seed, the mean over the clients that both have there."""
    found = _grouped(ours, theirs, 0)
    return {int(seed): float(value) for seed, value in zip(found, _means(found), strict=True)}


def client_differences(ours: Scores, theirs: Scores) -> Floats:
    """Return our score minus theirs of each client (K,), the mean over the seeds that both have of it."""
    return _means(_grouped(ours, theirs, 1))


def _grouped(ours: Scores, theirs: Scores, by: int) -> dict[int | str, list[float]]:
    found: dict[int | str, list[float]] = defaultdict(list)
    for key in sorted(ours.keys() & theirs.keys()):
        found[key[by]].append(ours[key] - theirs[key])
    return found


def _means(grouped: Mapping[int | str, Sequence[float]]) -> Floats:
    means = np.array([np.mean(values) for values in grouped.values()])
    means[np.abs(means) < EQUAL] = 0.0
    return means


def _spread(differences: Floats) -> Spread:
    signs = np.sign(differences)
    return Spread(float(differences.std()), *(int((signs == sign).sum()) for sign in (1, 0, -1)))


def interval(differences: Floats) -> tuple[float, float, float] | tuple[None, None, None]:
    """Bound the mean over seeds (n,) by Student's t with 95 % confidence, and return its p; None for a single seed.

    Where no seed differs from another, t has no width: p is 1 for no difference at all, else 0.
    """
    if len(differences) < 2:
        return None, None, None
    mean = float(differences.mean())
    if np.ptp(differences) < EQUAL:
        return mean, mean, 0.0 if abs(mean) >= EQUAL else 1.0
    test = _stats().ttest_1samp(differences, 0.0)
    bounds = test.confidence_interval(CONFIDENCE)
    return float(bounds.low), float(bounds.high), float(test.pvalue)


def sign_flip_p(differences: Floats) -> float | None:
    """Return the two-sided p that differences (n,) lie symmetrically about 0: the share of 2ⁿ signs that go as far.

    None for a single seed, and for more than `MAX_FLIPPED`, where nobody needs it.
    """
    seeds = len(differences)
    if not 2 <= seeds <= MAX_FLIPPED:
        return None
    test = _stats().permutation_test(
        (differences,), np.mean, permutation_type="samples", vectorized=True, n_resamples=2**seeds, batch=2**14
    )
    return float(test.pvalue)


def min_sign_flip_p(seeds: int) -> float:
    """Return the smallest p that `sign_flip_p` can have with so many seeds."""
    return 2.0 / 2.0**seeds


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values so that all of them together err with at most the level that each is compared with."""
    order = np.argsort(p_values, kind="stable")
    stepped = [(len(order) - place) * p_values[index] for place, index in enumerate(order)]
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0) if stepped else []
    return [float(value) for value in adjusted]


def rank_over_datasets(scores: Mapping[str, Sequence[float]]) -> Ranking | None:
    """Rank methods by their scores on the same N data sets; None for fewer than 3 of either.

    Friedman's χ² corrects for ties, the critical difference is q_α √(k(k+1)/6N) at α = 0.05 (Demšar, equation 5ff.).
    """
    table = np.array(list(scores.values()))
    if table.ndim != 2 or min(table.shape) < 3:
        return None
    methods, datasets = table.shape
    ranks = _stats().rankdata(-table.round(12), axis=0).mean(1)
    same = bool((np.ptp(table.round(12), axis=0) == 0).all())
    chi2, p = (0.0, 1.0) if same else map(float, _stats().friedmanchisquare(*table.round(12)))
    q = _stats().studentized_range.ppf(CONFIDENCE, methods, np.inf) / np.sqrt(2)
    difference = float(q * np.sqrt(methods * (methods + 1) / (6 * datasets)))
    return Ranking(dict(zip(scores, ranks.tolist(), strict=True)), datasets, chi2, p, difference)
