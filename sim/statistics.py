"""Which differences between methods are more than chance: over the clients of one federation, and over data sets.

- Signed ranks: F. Wilcoxon, Individual comparisons by ranking methods, Biometrics Bulletin 1 (1945); zeros as J. Pratt,
  Remarks on zeros and ties in the Wilcoxon signed rank procedures, JASA 54 (1959).
- Several tests at once: S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6 (1979).
- Intervals: B. Efron, Better bootstrap confidence intervals, JASA 82 (1987), 'BCa'.
- Data sets: J. Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 7 (2006), section 3.2.2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 9999
BOOTSTRAP_SEED = 0  # the same scores give the same interval
EQUAL = 1e-9  # differences between scores below this come from the order of additions

Floats = npt.NDArray[np.float64]
Scores = Mapping[tuple[int, str], float]
"""Scores by seed and client."""


@dataclass(frozen=True)
class PairedTest:
    """Our scores minus theirs on the same clients under the same seeds, between -1 and 1.

    `low` and `high` bound the mean with 95 % confidence, None for a single client; `p` is of the signed-rank test,
    `p_holm` is what is left of it among its sisters. Counts are of clients.
    """

    difference: float
    low: float | None
    high: float | None
    p: float
    better: int
    equal: int
    worse: int
    clients: int
    seeds: tuple[int, ...]
    p_holm: float = float("nan")


class Ranking(NamedTuple):
    """Methods over data sets: average ranks (1 is best), Friedman's χ² and p, and Nemenyi's critical difference."""

    ranks: Mapping[str, float]
    datasets: int
    chi2: float
    p: float
    critical_difference: float


def paired_test(ours: Scores, theirs: Scores) -> PairedTest | None:
    """Compare two methods client by client; None where they have no client of one seed in common."""
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    differences = client_differences(ours, theirs)
    bounds = interval(differences)
    signs = np.sign(differences)
    return PairedTest(
        difference=float(differences.mean()),
        low=bounds[0] if bounds else None,
        high=bounds[1] if bounds else None,
        p=signed_rank_p(differences),
        better=int((signs > 0).sum()),
        equal=int((signs == 0).sum()),
        worse=int((signs < 0).sum()),
        clients=len(differences),
        seeds=tuple(sorted({seed for seed, _ in common})),
    )


def client_differences(ours: Scores, theirs: Scores) -> Floats:
    """One number a client (K,): the mean over their common seeds of our score minus theirs.

    A client's seeds share its data, so it is the clients that are independent, and they that are counted and drawn.
    """
    by_client: dict[str, list[float]] = defaultdict(list)
    for seed, client in sorted(ours.keys() & theirs.keys()):
        by_client[client].append(ours[seed, client] - theirs[seed, client])
    means = np.array([np.mean(values) for values in by_client.values()])
    means[np.abs(means) < EQUAL] = 0.0
    return means


def interval(differences: Floats) -> tuple[float, float] | None:
    """Bound the mean of (K,) with 95 % confidence, drawing whole clients; None for fewer than two of them."""
    if len(differences) < 2:
        return None
    if np.ptp(differences) < EQUAL:  # nothing varies, and BCa would divide by it
        return float(differences.mean()), float(differences.mean())
    drawn = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=1000,
        confidence_level=CONFIDENCE,
        method="BCa",
        random_state=np.random.default_rng(BOOTSTRAP_SEED),
    )
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)


def signed_rank_p(differences: Floats) -> float:
    """Two-sided p that the differences (K,) lie symmetrically about 0; 1 where all are 0."""
    if not differences.any():
        return 1.0
    return float(stats.wilcoxon(differences, zero_method="pratt").pvalue)


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
    ranks = stats.rankdata(-table.round(12), axis=0).mean(1)
    same = bool((np.ptp(table.round(12), axis=0) == 0).all())
    chi2, p = (0.0, 1.0) if same else map(float, stats.friedmanchisquare(*table.round(12)))
    q = stats.studentized_range.ppf(CONFIDENCE, methods, np.inf) / np.sqrt(2)
    difference = float(q * np.sqrt(methods * (methods + 1) / (6 * datasets)))
    return Ranking(dict(zip(scores, ranks.tolist(), strict=True)), datasets, chi2, p, difference)
