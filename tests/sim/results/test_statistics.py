"""Paired tests and ranks against scipy, published tables, and numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from gaitway.tasks.classification import f1_per_class, scores_of
from sim.results.run_directory import lowest_tenth
from sim.results.statistics import (
    client_differences,
    holm,
    interval,
    min_sign_flip_p,
    paired_test,
    rank_over_datasets,
    seed_differences,
    sign_flip_p,
)


def scores(values: list[float], seed: int = 0) -> dict[tuple[int, str], float]:
    return {(seed, f"client-{k}"): value for k, value in enumerate(values)}


# ---- pairs


def test_the_unit_is_the_seed() -> None:
    ours = scores([0.9, 0.8, 0.7], 0) | scores([0.8, 0.9], 1) | {(2, "client-0"): 0.1}
    theirs = scores([0.8, 0.8, 0.9], 0) | scores([0.5, 0.7, 0.8], 1)
    # seed 0: (0.1 + 0 − 0.2) / 3; seed 1, where client-2 has one score: (0.3 + 0.2) / 2; seed 2 has no partner
    assert seed_differences(ours, theirs) == pytest.approx({0: -0.1 / 3, 1: 0.25})
    np.testing.assert_allclose(client_differences(ours, theirs), [0.2, 0.1, -0.2])
    test = paired_test(ours, theirs)
    assert test is not None
    assert test.difference == pytest.approx((-0.1 / 3 + 0.25) / 2)
    assert test.seeds == (0, 1)
    assert test.spread == pytest.approx((np.std([0.2, 0.1, -0.2]), 2, 0, 1))
    assert test.spread.clients == 3


def test_without_common_clients_there_is_no_test() -> None:
    assert paired_test(scores([0.5], 0), scores([0.5], 1)) is None


def test_rounding_is_no_difference() -> None:
    test = paired_test(scores([0.1 + 0.2, 0.5]) | scores([0.3, 0.1], 1), scores([0.3, 0.5]) | scores([0.3, 0.1], 1))
    assert test is not None
    assert (test.difference, test.spread.equal, test.p, test.p_signs) == (0.0, 2, 1.0, 1.0)
    assert (test.low, test.high) == (0.0, 0.0)


def test_one_seed_has_neither_interval_nor_p_however_many_clients() -> None:
    test = paired_test(scores([0.6] * 500), scores([0.5] * 499 + [0.4]))
    assert test is not None
    assert (test.low, test.high, test.p, test.p_signs) == (None, None, None, None)
    assert test.spread.better == 500


def test_the_interval_is_students_by_hand() -> None:
    """Differences 1, 2, 3, 6: mean 3, s = √(14/3), s/2 = 1.0801; t(0.975, 3) = 3.1824 by the table."""
    low, high, p = interval(np.array([1.0, 2, 3, 6]))
    assert (low, high) == pytest.approx((3 - 3.1824 * 1.0801, 3 + 3.1824 * 1.0801), abs=1e-3)
    assert p == pytest.approx(stats.ttest_1samp([1, 2, 3, 6], 0).pvalue)
    # two seeds: t(0.975, 1) = 12.7062, so that two that agree well still say little
    assert interval(np.array([0.01, 0.02]))[:2] == pytest.approx((0.015 - 0.0635310, 0.015 + 0.0635310))
    assert interval(np.array([0.01])) == (None, None, None)


@pytest.mark.parametrize(
    "differences", [[1.0, 2], [1.0, 2, 3], [1.0, 2, 3, 4, 5, 6], [1.0, 2, -3, 4, 5], [-1.0, -2, 3, 4, -5, 6, 0.5]]
)
def test_the_permutation_p_is_the_share_of_all_signs(differences: list[float]) -> None:
    every = [abs(np.dot(signs, differences)) for signs in itertools.product((-1, 1), repeat=len(differences))]
    by_hand = np.mean(np.array(every) >= abs(sum(differences)) - 1e-9)
    assert sign_flip_p(np.array(differences)) == pytest.approx(by_hand)
    if min(differences) > 0:
        assert by_hand == min_sign_flip_p(len(differences))


def test_fewer_than_six_seeds_cannot_reach_five_percent_by_signs() -> None:
    assert [min_sign_flip_p(seeds) < 0.05 for seeds in (2, 5, 6)] == [False, False, True]
    assert sign_flip_p(np.array([0.3])) is None


def test_the_interval_covers_the_truth_as_often_as_it_says_although_clients_share_their_seed() -> None:
    """What the clients of a seed have in common is one draw: an interval over clients does not know it."""
    random = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        gains = 0.1 + random.normal(0, 1, (4, 1)) + random.normal(0, 0.3, (4, 20))
        test = paired_test(by_seed(gains), by_seed(np.zeros((4, 20))))
        assert test is not None
        assert test.low is not None
        assert test.high is not None
        covered += test.low <= 0.1 <= test.high
    assert 366 <= covered <= 393  # of 400: binomial(400, 0.95) lies there with 99.8 %


def by_seed(values: npt.NDArray[np.float64]) -> dict[tuple[int, str], float]:
    """Scores from (seeds, clients)."""
    return {(seed, f"client-{k}"): float(value) for (seed, k), value in np.ndenumerate(values)}


def test_holm_by_hand() -> None:
    # 4·0.005; 3·0.01; 2·0.03; then 1·0.04 may not be below its predecessor
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


# ---- data sets


@pytest.mark.parametrize(("methods", "q"), [(3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (10, 3.164)])
def test_critical_values_are_demsars(methods: int, q: float) -> None:
    """Demšar 2006, table 5a, α = 0.05."""
    random = np.random.default_rng(0)
    ranking = rank_over_datasets({str(k): random.random(14).tolist() for k in range(methods)})
    assert ranking is not None
    assert ranking.critical_difference / math.sqrt(methods * (methods + 1) / (6 * 14)) == pytest.approx(q, abs=1e-3)


def test_friedman_by_its_formula() -> None:
    """Demšar 2006, equation in section 3.2.2: 12N/(k(k+1)) (Σ R² − k(k+1)²/4)."""
    table = {"a": [0.9, 0.8, 0.7, 0.9], "b": [0.8, 0.9, 0.6, 0.7], "c": [0.1, 0.2, 0.3, 0.4]}
    ranking = rank_over_datasets(table)
    assert ranking is not None
    assert ranking.ranks == {"a": 1.25, "b": 1.75, "c": 3.0}
    assert ranking.chi2 == pytest.approx(12 * 4 / (3 * 4) * (1.25**2 + 1.75**2 + 9 - 3 * 16 / 4))
    assert ranking.p == pytest.approx(stats.chi2.sf(ranking.chi2, 2))


def test_equal_scores_share_a_rank() -> None:
    ranking = rank_over_datasets({name: [0.5, 0.6, 0.7] for name in "abc"})
    assert ranking is not None
    assert (ranking.ranks, ranking.p) == (dict.fromkeys("abc", 2.0), 1.0)


def test_too_few_data_sets_or_methods_have_no_ranking() -> None:
    assert rank_over_datasets({"a": [1.0, 2], "b": [1.0, 2], "c": [1.0, 2]}) is None
    assert rank_over_datasets({"a": [1.0, 2, 3], "b": [1.0, 2, 3]}) is None
    assert rank_over_datasets({}) is None


# ---- one matrix, many clients


def test_f1_by_hand() -> None:
    matrix = np.array([[3, 1, 0], [0, 0, 0], [1, 0, 5]])
    f1 = f1_per_class(matrix)
    np.testing.assert_allclose(f1, [6 / 8, 0, 10 / 11])
    assert scores_of(matrix) == pytest.approx((np.mean(f1), 8 / 10))
    assert np.isnan(f1_per_class(np.zeros((2, 2), np.int64))).all()


@pytest.mark.parametrize(("clients", "taken"), [(1, 1), (9, 1), (19, 1), (24, 2), (141, 14)])
def test_the_lowest_tenth(clients: int, taken: int) -> None:
    values = np.random.default_rng(1).permutation(clients).astype(float).tolist()
    assert lowest_tenth(values) == pytest.approx((taken - 1) / 2)


def test_no_client_has_no_lowest_tenth() -> None:
    assert math.isnan(lowest_tenth([]))
