"""What the demo makes of its devices' summaries: who falls short of the bound, and tables for a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import har_pipeline
from gaitway.terminal import Console


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
    assert verdict.shortfalls({"a": WORKS, "b": CONFUSED}, 60.0, logs) == []
    assert verdict.shortfalls({"a": WORKS, "b": CONFUSED}, 80.0, logs) == [
        "b: macro-F1 78.0, at least 80 needed (weakest class: walk 57.1); see logs/agent-b.log"
    ]
    assert verdict.shortfalls({"b": summary(None, 0.7802)}, 80.0, logs) == [
        "b: macro-F1 78.0, at least 80 needed; see logs/agent-b.log"
    ]
    assert "78.0, on b" in verdict.reached({"a": WORKS, "b": CONFUSED}, 60.0)


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
    assert verdict.shortfalls({"a": summary(None, 0.60)}, 60.0, Path("logs")) == []
    assert len(verdict.shortfalls({"a": summary(None, 0.599)}, 60.0, Path("logs"))) == 1


@pytest.mark.parametrize("least", [0.0, 60.0])
def test_a_device_without_a_model_fails_whatever_the_bound(verdict: ModuleType, least: float) -> None:
    assert verdict.shortfalls({"a": WORKS, "b": NONE}, least, Path("logs")) == [
        "b: no model was adopted (it answers one class); see logs/agent-b.log"
    ]
    without_words = {key: value for key, value in NONE.items() if key != "not_adopted"}
    assert "an older reason" in verdict.shortfalls({"b": without_words}, least, Path("logs"))[0]


def test_a_model_without_a_score_fails_unless_none_is_asked_for(verdict: ModuleType) -> None:
    unscored = {"a": summary(None, None)}
    assert "no score" in verdict.shortfalls(unscored, 60.0, Path("logs"))[0]
    assert verdict.shortfalls(unscored, 0.0, Path("logs")) == []
    assert "none had windows" in verdict.reached(unscored, 0.0)


def test_every_data_set_of_the_demo_has_a_bound_above_that_of_one_answer(scenario: ModuleType) -> None:
    assert scenario.DATASET_DEFAULTS.keys() == {*scenario.REAL, "synthetic"}
    for dataset, suited in scenario.DATASET_DEFAULTS.items():
        classes = len(har_pipeline.dataset_labels(dataset, {}))
        assert suited.min_f1 > 100 / classes, dataset  # one answer has F1 of one class, at most 1, and 0 of all others


def test_real_recordings_are_those_of_motionsense_where_there_are_several(
    tmp_path: Path, scenario: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(har_pipeline, "recordings", lambda *given, **more: iter(["a recording of any set"]))
    chosen = scenario.choose(tmp_path, 4, 6.0)
    assert (chosen.dataset, chosen.clients) == ("motionsense", ("s01", "s02", "s03", "s04"))
    assert chosen.suited.min_f1 >= 60


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_fit_a_terminal(show: ModuleType, width: int) -> None:
    names = ["s00_phone100-waist", "s00_phone200-waist", "s01_phone100-waist"]
    output = io.StringIO()
    rounds = [{"number": 1, "phase": "published", "received": 3, "invited": 3, "opened_at": 0.0, "closed_at": 1.5}]
    show.results(Console(file=output, width=width), rounds, dict(zip(names, (WORKS, CONFUSED, NONE), strict=True)))
    lines = output.getvalue().splitlines()
    assert "…" not in output.getvalue()
    assert ["walk", "6", "14", "·"] in [line.split() for line in lines]  # 0 + 6, 10 + 4, 0 + 0
    assert any("s00_phone200-waist" in line and "78.0" in line and "walk 57.1" in line for line in lines)
    assert any("s00_phone100-waist" in line and "all 100" in line for line in lines)
    assert any("s01_phone100-waist" in line and "none" in line for line in lines)


def test_without_confusion_matrices_there_is_no_table_of_them(show: ModuleType) -> None:
    output = io.StringIO()
    show.results(Console(file=output, width=80), [], {"a": summary(None, 0.7)})
    assert "True class" not in output.getvalue()
    assert "70.0" in output.getvalue()


def test_both_federations_stand_side_by_side_and_a_device_that_learnt_nothing_is_named(
    show: ModuleType, verdict: ModuleType, exchange: ModuleType
) -> None:
    names = ["s00_phone100-waist", "s00_phone200-waist"]
    rounds = exchange.Outcome("fedali, 3 rounds", dict(zip(names, (0.912, None), strict=True)), 91.24, 2_345_678, 9)
    sums = exchange.Outcome("analytic, one exchange", dict(zip(names, (0.98, 0.74), strict=True)), 9.96, 5_000_000, 1e7)
    output = io.StringIO()
    show.beside(Console(file=output, width=80), [rounds, sums])
    lines = [[part.strip() for part in line.strip("│").split("│")] for line in output.getvalue().splitlines()]
    assert ["s00_phone100-waist", "91.2", "98.0"] in lines
    assert ["s00_phone200-waist", "–", "74.0"] in lines
    assert ["seconds", "91.2", "10.0"] in lines
    assert ["MB sent by all devices", "2.35", "5.00"] in lines
    assert verdict.outcome_shortfalls([], 75.0, Path("logs")) == []
    assert verdict.outcome_shortfalls([sums], 75.0, Path("logs")) == [
        "s00_phone200-waist, analytic, one exchange: macro-F1 74.0, at least 75 needed; "
        "see logs/analytic-s00_phone200-waist.log"
    ]
