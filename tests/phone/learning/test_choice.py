"""A phone uses the model that a native device would use, with the same expected gains and the same sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.serving.choice import Rules, choose
from edge_agent.serving.heads import Head, choose_head
from edge_agent.serving.model_runs import ExampleKind, ModelEvaluation, Windows
from federation.rounds.serving import Evidence, Prior
from gaitway.tasks import DEFAULT_TASK
from har_pipeline import ClientWindows
from tests.phone.learning.conftest import ByNode

LABELS = ("still", "walking", "running", "sitting")
CASES = 40
NETWORKS = {"global": "shared_network", "personalized": "personal_network", "midway": "midway_network"}
"""What a native device and a phone call the models of a federation in rounds."""
HEADS = ("shared", "shared_any_orientation", "adapted", "personalized", "personalized_any_orientation")


class Case:
    """Models that answer a holdout rightly now and then; `names` are those of the native device and of the phone."""

    def __init__(self, number: int, names: dict[str, str]) -> None:
        self.random = random = np.random.default_rng(number)
        self.names, self.is_network = names, names is NETWORKS
        lacking = int(random.integers(0, 2)) if self.is_network else 0
        count = int(random.choice([24, 60, 200]))
        self.y = np.sort(np.arange(count) % (len(LABELS) - lacking))
        self.session = random.integers(0, random.integers(1, 4), count)
        self.trained = np.arange(len(LABELS)) < len(LABELS) - lacking
        self.models = [self._model(name, 7 - (name == "global")) for name in names]
        held, version = str(random.choice(list(names))), int(random.choice([5, 9]))
        self.present = self._model(held, version) if random.random() < 0.6 else None
        self.sums = {name: self._sums() for name in names if random.random() < 0.5 and not name.startswith(("s", "g"))}

    def _model(self, name: str, version: int) -> dict[str, Any]:
        right = self.random.random(len(self.y)) < self.random.choice([0.3, 0.7, 0.8, 0.9, 0.95, 1.0])
        answers = np.where(right, self.y, self.random.integers(0, len(LABELS), len(self.y)))
        return {"name": name, "version": version, "sha": f"{name} {version}", "answers": answers.tolist()}

    def _sums(self) -> list[int]:
        gains = self.random.normal(0.05, 0.1, (12, len(LABELS)))
        reports = [Evidence(gain, np.full(len(LABELS), 0.02), 40).report() for gain in gains]
        return [int(number) for number in np.sum(reports, axis=0)]

    def for_node(self) -> dict[str, Any]:
        def model(one: dict[str, Any]) -> dict[str, Any]:
            return {
                **one,
                "head": self.names[one["name"]],
                "sha256": "a",
                **({"values": {}} if self.is_network else {}),
            }

        codes = np.repeat(np.flatnonzero(self.trained), 5)
        holdout = {
            "y": self.y.tolist(),
            "session": self.session.tolist(),
            "startS": [1.28 * i for i in range(len(self.y))],
        }
        return {
            "models": [model(one) for one in self.models],
            "present": model(self.present) if self.present else None,
            "sums": self.sums,
            "train": {"y": codes.tolist(), "session": [0] * len(codes)},
            **{"holdout": holdout, "labels": LABELS},
        }

    def by_python(self) -> dict[str, Any]:
        count = len(self.y)
        holdout = ClientWindows(
            "phone", np.zeros((count, 1, 6), np.float32), self.y, np.arange(count) * 1.28, self.session
        )
        windows = Windows.of(holdout, None, ExampleKind("windows", DEFAULT_TASK()), LABELS)
        runs = [self._run(one, windows) for one in self.models]
        present = self._run(self.present, windows) if self.present else None
        sums = self.sums if self.is_network else {}  # a head is chosen by own windows alone
        priors = {name: prior for name, numbers in sums.items() if (prior := Prior.of(numbers))}
        rules = Rules(labels=LABELS, priors=priors, trained=self.trained)
        if self.is_network:
            sound = [run for run in runs if not run.soundness.failure_reason] or runs[:1]
            found = choose(sound, [present] if present else [], windows, rules)
            assert found is not None
        else:
            found = choose_head([Head(Path(), run) for run in runs], present, windows, rules, is_far=False)
        words, failure = found.words, found.run.soundness.failure_reason
        return {
            "uses": found.run.model["sha256"],
            "why": f"{words}; it does not work: {failure}" if failure else words,
            "gains": [found.gains.get(run.key) for run in [*runs, *([present] if present else [])]],
        }

    def _run(self, model: dict[str, Any], windows: Windows) -> ModelEvaluation:
        noted = {"source": model["name"], "round": model["version"], "sha256": model["sha"]}
        if not self.is_network:
            noted |= {
                "head": model["name"],
                "source": "global" if model["name"].startswith("shared") else "personalized",
            }
        answers = np.array(model["answers"])
        found, quality = windows.holdout.task.judge(windows.holdout.windows.targets, answers, LABELS, "windows")
        return ModelEvaluation(noted, found, quality)


@pytest.mark.parametrize("names", [NETWORKS, {name: name for name in HEADS}], ids=["networks", "heads"])
def test_a_phone_uses_the_model_that_a_native_device_would(names: dict[str, str], by_node: ByNode) -> None:
    cases = [Case(number, names) for number in range(CASES)]
    used = set()
    for case, found in zip(cases, by_node("choice_of.mjs", [case.for_node() for case in cases]), strict=True):
        expected = case.by_python()
        assert found["why"] == expected["why"]
        if found["answer"] != "failed":
            assert found["uses"] == expected["uses"]
        assert list(found["gains"].values()) == [each and pytest.approx(each, abs=1e-12) for each in expected["gains"]]
        used.add(found["uses"])
    assert len(used) > 3, used
