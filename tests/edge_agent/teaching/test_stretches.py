"""Of each stretch the last quarter is left out, and nothing that is learnt from shares time with it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.teaching.learned_head import left_out

WINDOW_S, STRIDE_S = 2.56, 1.28


def test_a_stretch_of_twenty_seconds_leaves_out_its_last_quarter() -> None:
    start_s = np.arange(14) * STRIDE_S
    train, test = left_out(np.zeros(14, int), start_s, np.zeros(14, int), WINDOW_S)
    assert test.tolist() == [10, 11, 12, 13]
    assert train.tolist() == list(range(9))  # the tenth overlaps the first that is left out


def test_two_stretches_of_an_activity_each_leave_out_their_own() -> None:
    start_s = np.concatenate([np.arange(8) * STRIDE_S, 100 + np.arange(4) * STRIDE_S])
    _, test = left_out(np.zeros(12, int), start_s, np.zeros(12, int), WINDOW_S)
    assert test.tolist() == [6, 7, 11]


def test_short_stretches_are_learnt_from_whole() -> None:
    train, test = left_out(np.array([0, 0, 0]), np.arange(3) * STRIDE_S, np.zeros(3, int), WINDOW_S)
    assert (train.tolist(), test.tolist()) == ([0, 1, 2], [])
    train, test = left_out(np.zeros(0, int), np.zeros(0), np.zeros(0, int), WINDOW_S)
    assert not len(train)
    assert not len(test)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=6))
def test_nothing_learnt_shares_time_with_what_is_left_out(parts: list[tuple[int, int, int]]) -> None:
    y = np.concatenate([np.full(count, code) for code, count, _ in parts])
    pauses = np.concatenate([[3.0 * pause, *np.zeros(count - 1)] for _, count, pause in parts])
    start_s = np.arange(len(y)) * STRIDE_S + np.cumsum(pauses)
    train, test = left_out(y, start_s, np.zeros(len(y), int), WINDOW_S)
    assert not set(train) & set(test)
    gaps = np.abs(start_s[train][:, None] - start_s[test][None])
    assert not (gaps < WINDOW_S - 1e-6).any()
