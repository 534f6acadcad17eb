"""The paired test against scipy and numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from edge_agent.training.comparison import PairedComparison, by_stretch, singleton_groups, stretches
from har_pipeline import ClientWindows

STRIDE_S = 1.28


def windows(y: np.ndarray, session: np.ndarray | None = None, start_s: np.ndarray | None = None) -> ClientWindows:
    count = len(y)
    start = np.arange(count) * STRIDE_S if start_s is None else start_s
    sessions = np.zeros(count, np.int64) if session is None else session
    return ClientWindows("c", np.empty((count, 0, 6), np.float32), y.astype(np.int64), start, sessions)


def test_a_stretch_is_ten_seconds_of_one_activity_in_one_session() -> None:
    # 1.28 s apart: windows 0 to 7 begin within 10 s; window 12 is of another class, 13 on of another session
    y, session = np.zeros(16), np.zeros(16, np.int64)
    y[12], session[13:] = 1, 1
    found = stretches(windows(y, session))
    assert [len(set(part)) for part in np.split(found, [8, 12, 13])] == [1, 1, 1, 1]
    assert len(set(found)) == 4


def test_sessions_whose_clocks_overlap_and_windows_out_of_order_make_the_same_stretches() -> None:
    y, session = np.zeros(20), np.repeat([0, 1], 10)
    start = np.tile(np.arange(10) * STRIDE_S, 2)
    ordered = stretches(windows(y, session, start))
    mixed = np.random.default_rng(0).permutation(20)
    again = stretches(windows(y[mixed], session[mixed], start[mixed]))
    assert len(set(ordered)) == 4
    assert (again == ordered[mixed]).all()


def test_many_windows_of_one_long_mistake_count_once_for_each_ten_seconds() -> None:
    y = np.zeros(160)  # 205 s: 20 stretches
    mine, other = np.zeros(160, np.int64), np.zeros(160, np.int64)
    other[:24] = 1  # 24 windows in a row, which are 3 stretches
    found = PairedComparison.of(by_stretch(windows(y)), mine == y, other == y)
    assert (found.better, found.worse) == (3, 0)
    assert not found.is_better  # a test over windows would say p = 2**-24
    other[:40] = 1
    assert PairedComparison.of(by_stretch(windows(y)), mine == y, other == y).is_better  # 5 stretches: p = 1 / 32


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (5, 0), (7, 1), (7, 2), (30, 17), (3, 9)])
def test_the_probabilities_are_those_of_the_sign_test(better: int, worse: int) -> None:
    found, trials = PairedComparison(100, better, worse), better + worse
    expected = binomtest(better, trials, alternative="greater").pvalue if trials else 1.0
    assert found.p_better == pytest.approx(expected)
    assert found.is_better is bool(expected <= 0.05)
    opposite = binomtest(worse, trials, alternative="greater").pvalue if trials else 1.0
    assert found.is_worse is bool(opposite <= 0.05)


def test_equal_models_seldom_seem_to_differ() -> None:
    draw = np.random.default_rng(1)
    y = draw.integers(0, 4, 40).repeat(8)  # 40 stretches
    seemed = 0
    for _ in range(400):
        # both err in whole stretches, each in a fifth of them
        mine, other = (np.where(draw.random(40).repeat(8) < 0.2, (y + 1) % 4, y) for _ in range(2))
        seemed += PairedComparison.of(by_stretch(windows(y)), mine == y, other == y).is_better
    assert seemed / 400 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 400)


def test_images_have_a_vote_each_for_the_better_mask() -> None:
    mine, other = np.array([0.9, 0.8, 0.5, 0.7, 0.6, 0.9]), np.array([0.5, 0.7, 0.5, 0.6, 0.5, 0.8])
    found = PairedComparison.of(singleton_groups(6, "images"), mine, other)
    assert (found.groups, found.better, found.worse) == (6, 5, 0)
    assert found.p_better == pytest.approx(1 / 32)
    assert found.words.startswith("of 6 images it is right more often on 5 and less often on 0")
