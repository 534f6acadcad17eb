"""Which head is served: the one that is expected to be the best on the device's own windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edge_agent.serving.choice import Rules
from edge_agent.serving.heads import Head, choose_head, comparable
from edge_agent.serving.model_runs import ExampleKind, ModelEvaluation, Windows
from edge_agent.training.local_data import SplitWindows
from federation.rounds.serving import Prior
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
    choice = choose_head(heads, None, Windows.of(holdout, None, ExampleKind(), LABELS), Rules(), is_far)
    return str(choice.run.model["head"]), choice.words


def test_the_head_with_the_higher_recall_serves_and_of_equals_the_personal_one() -> None:
    holdout = windows(10)
    mostly = np.array([1] * 14 + [0] * 6)
    one_more = np.array([1] * 15 + [0] * 5)
    assert chosen(holdout, shared=mostly, personalized=mostly)[0] == "personalized"
    assert chosen(holdout, shared=one_more, personalized=mostly)[0] == "shared"
    name, why = chosen(holdout, shared=mostly, personalized=one_more)
    assert name == "personalized"
    assert why == "Your own model: 73 % on 20 holdout windows of 2 classes; the shared model: 67 %"


def test_what_other_devices_gain_changes_no_choice_of_a_head() -> None:
    holdout = windows(10)
    mostly, one_more = np.array([1] * 14 + [0] * 6), np.array([1] * 15 + [0] * 5)
    seen = Windows.of(holdout, None, ExampleKind(), LABELS)
    for gain, better in ((-0.4, "personalized"), (0.4, "shared")):
        rules = Rules(priors={"personalized": Prior(gain, 0.0, np.full(2, gain))})
        right = {"shared": mostly, "personalized": mostly, better: one_more}
        heads = [head(name, holdout, values) for name, values in right.items()]
        assert choose_head(heads, None, seen, rules, is_far=False).run.model["head"] == better


def test_a_head_that_ignores_how_the_phone_lies_has_to_beat_the_one_that_does_not() -> None:
    holdout = windows(10)
    mostly, all_right = np.array([1] * 15 + [0] * 5), np.ones(20, int)
    name, _ = chosen(holdout, shared=mostly, personalized=all_right, personalized_any_orientation=all_right)
    assert name == "personalized"
    name, _ = chosen(holdout, shared=mostly, personalized=mostly, personalized_any_orientation=all_right)
    assert name == "personalized_any_orientation"


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
    assert "orientation seems unusual" in why
    name, why = chosen(nothing, adapted=empty, **heads)
    assert (name, "unlabelled windows count a little" in why) == ("adapted", True)
    assert chosen(nothing, is_far=True, adapted=empty, **heads)[0] == "shared_any_orientation"
    assert chosen(nothing, is_far=True, personalized=empty)[0] == "personalized"  # before anybody else has sent
