"""Which head is served: the simplest, unless the device's own windows show another to be better."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from edge_agent.serving.heads import Head, choose, comparable
from edge_agent.serving.model_runs import ExampleKind, ModelEvaluation, Windows
from edge_agent.training.comparison import PairedGain, by_stretch
from edge_agent.training.local_data import SplitWindows
from gaitway.tasks import DEFAULT_TASK
from har_pipeline import ClientWindows

LABELS = ("sit", "walk")


def windows(per_class: int, *, session: int = 0, step_s: float = 1.28) -> ClientWindows:
    """So many windows of each of two classes, one after another."""
    count = 2 * per_class
    y = np.repeat([0, 1], per_class)
    x = np.zeros((count, 0, 6), np.float32)
    return ClientWindows("c", x, y, step_s * np.arange(count), np.full(count, session))


def head(name: str, holdout: ClientWindows, right: list[int] | np.ndarray) -> Head:
    answers = np.where(np.asarray(right) > 0, holdout.y, 1 - holdout.y)
    found, quality = DEFAULT_TASK().judge(holdout.y, answers, LABELS, "windows")
    model = {"head": name, "source": "global", "round": 3, "sha256": name}
    return Head(Path(name), ModelEvaluation(model, found, quality))


def chosen(holdout: ClientWindows, *, is_far: bool = False, **right: list[int] | np.ndarray) -> tuple[str, str]:
    heads = [head(name, holdout, values) for name, values in right.items()]
    choice = choose(heads, Windows.of(holdout, None, ExampleKind()), is_far)
    return choice.head.name, choice.why


def test_the_simplest_is_used_unless_another_wins_by_more_than_a_standard_error() -> None:
    holdout = windows(6, step_s=10.0)  # twelve stretches of one window
    mostly = np.array([1] * 8 + [0] * 4)
    assert chosen(holdout, shared=mostly, personalized=mostly)[0] == "shared"
    one_more = mostly.copy()
    one_more[8] = 1  # a gain of 1/12 with a standard error of 1/12
    assert chosen(holdout, shared=mostly, personalized=one_more)[0] == "shared"
    all_right = np.ones(12, int)
    name, why = chosen(holdout, shared=mostly, personalized=all_right)
    assert name == "personalized"
    assert "33.3 ± 14.2 points" in why
    assert "shared head" in why


def test_a_more_complex_head_has_to_beat_the_best_of_the_simpler_ones() -> None:
    holdout = windows(6, step_s=10.0)
    mostly, all_right = np.array([1] * 6 + [0] * 6), np.ones(12, int)
    name, _ = chosen(holdout, shared=mostly, personalized=all_right, personalized_any_orientation=all_right)
    assert name == "personalized"


def test_gain_and_error_are_those_of_means_over_stretches() -> None:
    holdout = windows(8)  # two stretches of eight windows each: 10.24 s from the first begin to the last
    mine, other = np.ones(16), np.concatenate([np.zeros(8), np.ones(4), np.zeros(4)])
    groups = by_stretch(holdout)
    found = PairedGain.of(groups, mine, other)
    means = [1.0 - other[groups.number == group].mean() for group in range(len(groups))]
    assert found.gain == pytest.approx(np.mean(means))
    assert found.error == pytest.approx(np.std(means, ddof=1) / math.sqrt(len(means)))
    alone = PairedGain.of(by_stretch(holdout.select(np.arange(4))), np.ones(4), np.zeros(4))
    assert (alone.gain, alone.error, alone.is_better) == (1.0, None, False)


def test_activities_with_fewer_than_five_windows_in_a_row_judge_nothing() -> None:
    many = windows(5)
    assert len(comparable(SplitWindows(many, many.select(np.array([4, 9]))))) == 2
    four = windows(4)
    assert len(comparable(SplitWindows(four, four.select(np.array([3, 7]))))) == 0
    apart = ClientWindows("c", many.x, many.y, many.start_s, np.arange(10))  # ten recordings of one window
    assert len(comparable(SplitWindows(apart, apart.select(np.array([4, 9]))))) == 0


def test_without_labels_it_is_the_shared_head_or_the_one_that_knows_no_axes() -> None:
    nothing = windows(5).select(np.zeros(0, np.int64))
    empty: list[int] = []
    heads = {"shared": empty, "shared_any_orientation": empty, "personalized": empty}
    assert chosen(nothing, **heads)[0] == "shared"
    name, why = chosen(nothing, is_far=True, **heads)
    assert name == "shared_any_orientation"
    assert "lie otherwise" in why
    name, why = chosen(nothing, adapted=empty, **heads)
    assert (name, "without labels count a little" in why) == ("adapted", True)
    assert chosen(nothing, is_far=True, adapted=empty, **heads)[0] == "shared_any_orientation"
    assert chosen(nothing, is_far=True, personalized=empty)[0] == "personalized"  # before anybody else has sent
