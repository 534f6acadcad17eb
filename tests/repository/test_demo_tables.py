"""What the demo makes of its devices' summaries: who falls short of the bound, and tables for a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import har_pipeline
from gaitway.terminal import Console


def outcome(verdict: ModuleType, summaries: dict[str, Any]) -> Any:
    return verdict.Outcome("demo", "fedali, 2 rounds", summaries, 91.24, 2_345_678, 9)


def summary(matrix: list[list[int]] | None, macro_f1: float | None) -> dict[str, Any]:
    """What an agent leaves, with a model whose confusion matrix is that; none in the older form."""
    confusion = {} if matrix is None else {"confusion": matrix, "labels": ["sit", "walk", "climbingdown"]}
    parity = {"max_abs_diff": 1e-6, "argmax_agreement": 1.0, "windows": 30}
    kept = {"path": "models/r2.onnx", "source": "personalized", "round": 2, "score": macro_f1, "parity": parity}
    rounds = [{"round": n, "score_before": 0.05 * n, "score_after": min(1.0, 0.1 * n)} for n in range(1, 13)]
    names = {"midway": 0.78, "personalized": 0.9}
    models = [{"name": f"{name} model of round 2", "score": score, "in_use": False} for name, score in names.items()]
    compared = {"why": "Your own model: 78 %", "models": [{**models[0], "in_use": True}, models[1]]}
    return {"device": "d", "rounds": rounds, "model": {**kept, **confusion}, "adoption": [], "compared": compared}


WORKS = summary([[10, 0, 0], [0, 10, 0], [0, 0, 10]], 1.0)
# F1 by hand: sit 2·10/(10 + 16), walk 2·4/(10 + 4), climbingdown 1; their mean is 0.780
CONFUSED = summary([[10, 0, 0], [6, 4, 0], [0, 0, 10]], 0.7802)
NONE = {**WORKS, "model": None, "not_adopted": "it answers one class", "adoption": ["an older reason"]}


def test_a_device_under_the_bound_is_named_with_its_score_its_weakest_class_and_its_log(verdict: ModuleType) -> None:
    logs = Path("logs")
    both = outcome(verdict, {"a": WORKS, "b": CONFUSED})
    assert verdict.shortfalls(both, 60.0, logs) == []
    assert verdict.shortfalls(both, 80.0, logs) == [
        "b (fedali, 2 rounds): macro-F1 78.0, at least 80 needed (weakest class: walk 57.1); see logs/demo-b.log"
    ]
    assert verdict.shortfalls(outcome(verdict, {"b": summary(None, 0.7802)}), 80.0, logs) == [
        "b (fedali, 2 rounds): macro-F1 78.0, at least 80 needed; see logs/demo-b.log"
    ]


def test_a_device_that_serves_a_worse_model_than_it_holds_is_named(verdict: ModuleType) -> None:
    assert verdict.worse_choices({"a": WORKS}) == [
        "a serves a worse model than it holds: macro-F1 78.0, and its personalized model of round 2 has 90.0 on the "
        "same windows"
    ]
    close = {
        **WORKS,
        "compared": {
            "models": [{"name": "m", "score": 0.80, "in_use": True}, {"name": "n", "score": 0.84, "in_use": False}]
        },
    }
    assert verdict.worse_choices({"a": close, "b": {**WORKS, "compared": None}}) == []


def test_a_score_on_the_bound_is_enough(verdict: ModuleType) -> None:
    assert verdict.shortfalls(outcome(verdict, {"a": summary(None, 0.60)}), 60.0, Path("logs")) == []
    assert len(verdict.shortfalls(outcome(verdict, {"a": summary(None, 0.599)}), 60.0, Path("logs"))) == 1


@pytest.mark.parametrize("least", [0.0, 60.0])
def test_a_device_without_a_model_fails_whatever_the_bound(verdict: ModuleType, least: float) -> None:
    assert verdict.shortfalls(outcome(verdict, {"a": WORKS, "b": NONE}), least, Path("logs")) == [
        "b (fedali, 2 rounds): no model was adopted (it answers one class); see logs/demo-b.log"
    ]
    without_words = {key: value for key, value in NONE.items() if key != "not_adopted"}
    assert "an older reason" in verdict.shortfalls(outcome(verdict, {"b": without_words}), least, Path("logs"))[0]


def test_a_model_without_a_score_fails_unless_none_is_asked_for(verdict: ModuleType) -> None:
    unscored = outcome(verdict, {"a": summary(None, None)})
    assert "no score" in verdict.shortfalls(unscored, 60.0, Path("logs"))[0]
    assert verdict.shortfalls(unscored, 0.0, Path("logs")) == []


def test_every_data_set_of_the_demo_has_a_bound_above_that_of_one_answer(scenario: ModuleType) -> None:
    assert scenario.DATASET_DEFAULTS.keys() == {*scenario.REAL, "synthetic"}
    for dataset, suited in scenario.DATASET_DEFAULTS.items():
        classes = len(har_pipeline.dataset_labels(dataset, {}))
        assert suited.min_f1 > 100 / classes, dataset  # one answer has F1 of one class, at most 1, and 0 of all others


def test_real_recordings_are_those_of_motionsense_where_there_are_several(
    tmp_path: Path, scenario: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(har_pipeline, "recordings", lambda *given, **more: iter(["a recording of any set"]))
    chosen = scenario.choose(tmp_path, 4)
    assert (chosen.dataset, chosen.clients) == ("motionsense", ("s01", "s02", "s03", "s04"))
    assert scenario.DATASET_DEFAULTS[chosen.dataset].min_f1 >= 60


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_fit_a_terminal(show: ModuleType, width: int) -> None:
    names = ["s00_phone100-waist", "s00_phone200-waist", "s01_phone100-waist"]
    output = io.StringIO()
    show.models(Console(file=output, width=width), dict(zip(names, (WORKS, CONFUSED, NONE), strict=True)))
    lines = output.getvalue().splitlines()
    assert "…" not in output.getvalue()
    assert ["walk", "6", "14", "·"] in [line.split() for line in lines]  # 0 + 6, 10 + 4, 0 + 0
    assert any("s00_phone200-waist" in line and "78.0" in line and "walk 57.1" in line for line in lines)
    assert any("s00_phone100-waist" in line and "all 100" in line for line in lines)
    assert any("s01_phone100-waist" in line and "none" in line for line in lines)


def test_without_confusion_matrices_there_is_no_table_of_them(show: ModuleType) -> None:
    output = io.StringIO()
    show.models(Console(file=output, width=80), {"a": summary(None, 0.7)})
    assert "True class" not in output.getvalue()
    assert "70.0" in output.getvalue()


def test_both_federations_stand_side_by_side(show: ModuleType, verdict: ModuleType) -> None:
    names = ["s00_phone100-waist", "s00_phone200-waist"]
    rounds = outcome(verdict, dict(zip(names, (CONFUSED, NONE), strict=True)))
    learned = dict(zip(names, (WORKS, summary(None, 0.74)), strict=True))
    sums = verdict.Outcome("demo-analytic", "analytic, one exchange", learned, 9.96, None, 1e7)
    output = io.StringIO()
    show.compare(Console(file=output, width=80), [rounds, sums])
    lines = [[part.strip() for part in line.strip("│").split("│")] for line in output.getvalue().splitlines()]
    assert ["s00_phone100-waist", "78.0", "100.0"] in lines
    assert ["s00_phone200-waist", "–", "74.0"] in lines
    assert ["seconds", "91.2", "10.0"] in lines
    assert ["MB sent by all devices", "2.35", "–"] in lines
