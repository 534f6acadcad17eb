"""The federation's model serves where nothing says that the device's own is better, also without enough windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.machine.commands import Evaluate
from edge_agent.serving.model_registry import Verdict
from har_pipeline import ClientWindows
from tests.edge_agent.serving.test_acceptance import candidate, described, holdout, judge, score


def small(stretches: int) -> ClientWindows:
    """So many stretches of 10 s with seven windows each, of three classes in turn."""
    windows = holdout(7 * stretches)
    y = np.repeat(np.arange(stretches) % 3, 7)
    x = np.zeros_like(windows.x)
    x[np.arange(len(y)), :, y] = 1.0
    return replace(windows, x=x, y=y, start_s=1.28 * np.arange(len(y)) + 3 * np.repeat(np.arange(stretches), 7))


def judged(mine: Path, present: dict[str, Any] | None, windows: ClientWindows, **asked: Any) -> Verdict:
    return judge(mine, Evaluate(2, "adopt", 0, asked.get("score")), windows, present)


@pytest.mark.parametrize("windows", [small(4), small(2), holdout(12), holdout(0)], ids=["4", "2", "few", "none"])
def test_a_personal_model_that_nobody_could_check_gives_way_to_a_better_global_one(
    tmp_path: Path, windows: ClientWindows
) -> None:
    # the case: the personal one of round 1 errs on a third of the windows, the global one on none
    worse = described(candidate(tmp_path / "own", confuses=1))
    verdict = judged(candidate(tmp_path / "shared"), worse, windows, score=score(working=9))
    assert verdict.answer == "adopted", verdict.reason


def test_without_any_score_the_global_model_still_comes_before_an_unchecked_personal_one(tmp_path: Path) -> None:
    present = described(candidate(tmp_path / "own", confuses=1))
    verdict = judged(candidate(tmp_path / "shared"), present, holdout(0))
    assert verdict.answer == "adopted"
    assert "unchecked" in verdict.reason


def test_a_personal_model_that_scores_higher_stays(tmp_path: Path) -> None:
    present = described(candidate(tmp_path / "own"))
    verdict = judged(candidate(tmp_path / "shared", confuses=1), present, small(30), score=score(working=9))
    assert verdict.answer == "kept"
    assert "(in use: personalized model of round 1)" in verdict.reason


def test_a_newer_global_model_replaces_the_one_before_unless_it_is_worse(tmp_path: Path) -> None:
    older = described(candidate(tmp_path / "older"), "global")
    same = judged(candidate(tmp_path / "same", scale=2.0), older, small(6), score=score(working=9))
    assert same.answer == "adopted"
    worse = judged(candidate(tmp_path / "worse", confuses=1), older, small(30), score=score(working=9))
    assert worse.answer == "kept"


@pytest.mark.parametrize("windows", [holdout(12), holdout(0)])
def test_a_newer_personal_model_replaces_an_older_one_where_nobody_can_check_either(
    tmp_path: Path, windows: ClientWindows
) -> None:
    # of a method without a global model, say; the first, trained once, would otherwise stay for ever
    present = described(candidate(tmp_path / "own", confuses=1))
    verdict = judge(candidate(tmp_path / "new"), Evaluate(9, "train"), windows, present)
    assert verdict.answer == "adopted"
    assert "unchecked" in verdict.reason
