"""Paired tests and ranks against scipy, published tables, and numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from federation.scores import f1_per_class, lowest_tenth, scores_of
from sim.statistics import (
    client_differences,
    holm,
    interval,
    paired_test,
    rank_over_datasets,
    signed_rank_p,
)


def scores(values: list[float], seed: int = 0) -> dict[tuple[int, str], float]:
    return {(seed, f"client-{k}"): value for k, value in enumerate(values)}


# ---- pairs


def test_a_client_counts_once_however_many_seeds_it_has() -> None:
    ours = scores([0.9, 0.8, 0.7], 0) | scores([0.8, 0.9, 0.7], 1) | {(2, "client-0"): 0.1}
    theirs = scores([0.8, 0.8, 0.9], 0) | scores([0.5, 0.7, 0.8], 1)
    # client-0: (0.1 + 0.3) / 2, client-1: (0 + 0.2) / 2, client-2: (-0.2 - 0.1) / 2; seed 2 has no partner
    np.testing.assert_allclose(client_differences(ours, theirs), [0.2, 0.1, -0.15])
    test = paired_test(ours, theirs)
    assert test is not None
    assert test.difference == pytest.approx(0.05)
    assert (test.better, test.equal, test.worse) == (2, 0, 1)
    assert (test.clients, test.seeds) == (3, (0, 1))


def test_without_common_clients_there_is_no_test() -> None:
    assert paired_test(scores([0.5], 0), scores([0.5], 1)) is None


def test_rounding_is_no_difference() -> None:
    test = paired_test(scores([0.1 + 0.2, 0.5]), scores([0.3, 0.5]))
    assert test is not None
    assert (test.difference, test.equal, test.p, test.low, test.high) == (0.0, 2, 1.0, 0.0, 0.0)


def test_one_client_has_no_interval() -> None:
    test = paired_test(scores([0.6]), scores([0.5]))
    assert test is not None
    assert (test.low, test.high, test.p) == (None, None, 1.0)


@pytest.mark.parametrize("differences", [[1.0, 2, 3, 4, 5], [1.0, 2, -3, 4, 5], [-1.0, -2, 3, 4, -5, 6]])
def test_signed_rank_p_is_the_share_of_all_signs(differences: list[float]) -> None:
    """The exact distribution: each of the 2^K signs is equally likely."""
    magnitudes = stats.rankdata(np.abs(differences))
    half = magnitudes.sum() / 2
    came = abs(magnitudes[np.array(differences) > 0].sum() - half)
    every = [abs(magnitudes @ np.array(signs) - half) for signs in itertools.product((0, 1), repeat=len(differences))]
    assert signed_rank_p(np.array(differences)) == pytest.approx(np.mean(np.array(every) >= came - 1e-9))


def test_the_interval_is_near_students_where_that_is_exact() -> None:
    values = np.random.default_rng(3).normal(0.02, 0.05, 200)
    bounds = interval(values)
    student = stats.t.interval(0.95, 199, values.mean(), stats.sem(values))
    assert bounds == pytest.approx(student, abs=0.1 * (student[1] - student[0]))
    assert bounds == interval(values), "the same scores give the same interval"


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(4)
    bounds = [interval(random.normal(0.1, 1, 30)) for _ in range(120)]
    covered = sum(low <= 0.1 <= high for low, high in filter(None, bounds))
    assert 105 <= covered <= 119  # of 120: binomial(120, 0.95) lies there with 99.5 %; BCa is a little short at K = 30


def test_seeds_of_one_client_do_not_narrow_the_interval() -> None:
    random = np.random.default_rng(5)
    ours, theirs = random.random(12).tolist(), random.random(12).tolist()
    once = paired_test(scores(ours), scores(theirs))
    thrice = paired_test(
        scores(ours, 0) | scores(ours, 1) | scores(ours, 2), scores(theirs, 0) | scores(theirs, 1) | scores(theirs, 2)
    )
    assert once is not None
    assert thrice is not None
    assert (once.low, once.high, once.p) == pytest.approx((thrice.low, thrice.high, thrice.p))


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
