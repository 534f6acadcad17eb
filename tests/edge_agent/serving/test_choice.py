"""What a device's choice goes by besides its windows: other devices' gains, less its own, and what it trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edge_agent.config.training import ModelSection
from edge_agent.machine.commands import Evaluate
from edge_agent.serving.choice import Rules
from edge_agent.serving.model_registry import ModelRegistry
from edge_agent.storage.state_store import REPORTED_GAINS, StateStore
from edge_agent.supervisor.persistence import KEPT_REPORTS, reported_gains_json
from edge_agent.training.local_data import SplitWindows
from federation.rounds.serving import MIN_DEVICES, STEPS, Evidence
from har_pipeline import ClientWindows
from tests.edge_agent.factories import make_plan


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
