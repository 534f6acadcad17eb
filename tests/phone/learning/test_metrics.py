"""What a phone's update says of its model is what a native device's says of the same answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edge_agent.training.trainer import Measurement, holdout_metrics
from gaitway.tasks.classification import ClassificationTask, confusion, f1_per_class, scores_of
from tests.phone.learning.conftest import ByNode

CASES = 60


def case(random: np.random.Generator) -> dict[str, Any]:
    """Answers that are right by chance, to holdouts that tell something and to those that do not."""
    classes, count = int(random.choice([2, 6, 24])), int(random.choice([0, 3, 40, 300]))
    y = random.integers(0, random.integers(1, classes + 1), count)
    before, after = (
        np.where(random.random(count) < random.random(), y, random.integers(0, classes, count)).tolist()
        for _ in range(2)
    )
    return {"y": y.tolist(), "before": before, "after": after, "labels": [f"class {k}" for k in range(classes)]}


def by_python(y: list[int], before: list[int], after: list[int], labels: list[str]) -> dict[str, float]:
    measured = []
    for answered in (before, after):
        matrix = confusion(np.array(y, np.int64), np.array(answered, np.int64), len(labels))
        sound = ClassificationTask().soundness({"confusion": matrix}, len(y), labels)
        measured.append(Measurement(scores_of(matrix)._asdict(), sound, f1_per_class(matrix).tolist()))
    return {name: value for name, value in holdout_metrics(*measured).items() if math.isfinite(value)}


def test_a_phones_update_carries_what_a_native_devices_does(by_node: ByNode) -> None:
    random = np.random.default_rng(5)
    cases = [case(random) for _ in range(CASES)]
    expected = [by_python(**each) for each in cases]
    assert by_node("metrics_of.mjs", cases) == expected
    unknown = [each | {"before": None} for each in cases]
    alone = [{name: value for name, value in each.items() if not name.endswith("_before")} for each in expected]
    assert by_node("metrics_of.mjs", unknown) == alone, "before anybody has sent sums there is no shared head"
    assert {name for each in expected for name in each} >= {"works_after", "macro_f1_trivial", "class_0_after"}
