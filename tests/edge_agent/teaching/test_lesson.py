"""A lesson counts twenty seconds of motion on the sensor's clock, whatever comes between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.teaching.learned_head import left_out
from edge_agent.teaching.lesson import LESSON_S, Lesson
from har_pipeline import Window

WINDOW_S, STRIDE_S = 2.56, 1.28


def windows(from_s: float, count: int, shaking: float = 2.0) -> list[Window]:
    x = (shaking * np.random.default_rng(0).normal(size=(128, 6))).astype(np.float32)
    return [Window(x, -1, from_s + STRIDE_S * n, 0) for n in range(count)]


def test_twenty_seconds_of_unbroken_motion_are_one_span() -> None:
    lesson = Lesson("walking", WINDOW_S, 0.0, None)
    lesson.take(windows(100.0, 14), 1.0)
    assert not lesson.is_complete
    lesson.take(windows(100.0 + 14 * STRIDE_S, 5), 2.0)
    assert lesson.is_complete
    assert lesson.spans == [(100.0, pytest.approx(100.0 + LESSON_S))]
    assert lesson.warning(3.0) == ""


def test_what_was_measured_before_the_tap_does_not_count() -> None:
    latest = windows(98.71, 1)[0]
    lesson = Lesson("walking", WINDOW_S, 0.0, latest)
    lesson.take(windows(100.0, 3), 1.0)
    assert lesson.spans[0][0] == pytest.approx(101.28)


def test_pauses_and_gaps_make_spans_of_their_own() -> None:
    lesson = Lesson("walking", WINDOW_S, 0.0, None)
    lesson.take(windows(100.0, 4), 1.0)
    lesson.pause()
    lesson.take(windows(106.0, 4), 2.0)
    lesson.resume(3.0, windows(109.84, 1)[0])
    lesson.take(windows(120.0, 3), 4.0)
    lesson.take(windows(200.0, 3), 5.0)
    assert [round(to_s - from_s, 2) for from_s, to_s in lesson.spans] == [6.4, 5.12, 5.12]
    assert not any(106.5 < to_s < 119.0 for _, to_s in lesson.spans)
    assert not lesson.is_complete


def test_silence_and_stillness_are_said() -> None:
    lesson = Lesson("walking", WINDOW_S, 0.0, None)
    assert lesson.warning(1.0) == ""
    assert "No motion has come for 6 s" in lesson.warning(6.0)
    lesson.take(windows(100.0, 2, shaking=0.001), 6.0)
    assert lesson.warning(6.5).startswith("Hardly any motion so far")
    lesson.pause()
    assert lesson.warning(60.0) == ""


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
