"""What a device's choice goes by: its windows, other devices' gains, what it trained on, and the federation's model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.config.training import ModelSection
from edge_agent.machine.commands import Evaluate
from edge_agent.serving.choice import Rules
from edge_agent.serving.model_registry import ModelRegistry, Verdict
from edge_agent.storage.state_store import REPORTED_GAINS, StateStore
from edge_agent.supervisor.persistence import KEPT_REPORTS, reported_gains_json
from edge_agent.training.local_data import SplitWindows
from federation.rounds.serving import MIN_DEVICES, STEPS, Evidence
from har_pipeline import ClientWindows
from tests.edge_agent.factories import make_plan
from tests.edge_agent.serving.test_acceptance import candidate, described, holdout, judge, score


def report(gain: float, classes: int) -> list[int]:
    """A device's report of a gain that each class has alike."""
    return Evidence(np.full(classes, gain), np.full(classes, 0.001), 30).report()


def windows(labels: list[int]) -> ClientWindows:
    """A window of each class in the list."""
    y = np.array(labels, np.int64)
    return ClientWindows("c", np.zeros((len(y), 0, 6), np.float32), y, np.arange(len(y), dtype=float), np.zeros_like(y))


def test_the_servers_sums_become_priors_without_the_devices_own_report() -> None:
    plan = make_plan()
    classes = len(plan.labels)
    own = report(0.4, classes)
    sums = np.sum([own, *[report(0.1, classes)] * MIN_DEVICES], axis=0).tolist()
    asked = Evaluate(3, "train", gains={"personalized": sums, "midway": [1, 0, 0]})
    data = SplitWindows(windows([0, 0, 1, 1, 2]), windows([0, 1, 2]))
    rules = Rules.of(ModelSection(), plan, asked, {"personalized": own}, data)
    assert list(rules.priors) == ["personalized"]
    assert abs(rules.priors["personalized"].mean - 0.1) < 1 / STEPS
    assert rules.trained is not None
    assert rules.trained.tolist() == [True, True] + [False] * (classes - 2)  # the one window of class 2 is held out
    # sums of another length, as of a server with other activities, are left out, and so is such a report
    strange = Evaluate(3, "train", gains={"personalized": [*sums, 0, 0], "midway": sums})
    found = Rules.of(ModelSection(), plan, strange, {"midway": [1, 0, 0]}, data)
    assert list(found.priors) == ["midway"]
    unreported = Rules.of(ModelSection(), plan, asked, {}, data)
    assert unreported.priors["personalized"].mean > 0.12


def test_a_device_remembers_what_it_reported_of_the_last_rounds(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    for number in range(1, KEPT_REPORTS + 3):
        store.put(**{REPORTED_GAINS: reported_gains_json(store, number, {"personalized": [1, number, 0]})})
    registry = ModelRegistry(store)
    # a round begins from the version before it, an adopted one is the version itself
    assert registry.reported_gains(Evaluate(5, "train")) == {"personalized": [1, 4, 0]}
    assert registry.reported_gains(Evaluate(5, "adopt")) == {"personalized": [1, 5, 0]}
    assert registry.reported_gains(Evaluate(2, "train")) == {}
    store.close()


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
