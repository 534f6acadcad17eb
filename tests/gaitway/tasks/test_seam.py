"""A task is the only seam: nothing but its own two files knows its name, and another package's works everywhere."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import models
from edge_agent.serving.model_runs import ExampleKind
from export.runtime import ModelFileError
from federation.errors import SettingsError
from federation.plan import live_incompatibility, with_packages
from federation.tasks import TASKS as TORCH_TASKS
from federation.tasks import task_from_json
from gaitway.tasks import DEFAULT_TASK, TASKS, TargetKind, metric_of, task_of, trivial_answer
from gaitway.tasks.classification import ClassificationTask
from tests.edge_agent.factories import make_plan
from tests.export.conftest import metadata
from tests.gaitway.conftest import Install, task_modules
from tests.repository.imports import modules

TABLES = ("gaitway.tasks", "federation.tasks", "sim.presets", "aggregator_api.storage.db.migrations")
"""Presets are plans: they name what they learn, as a user does. A migration names a column, and stays as it was."""


def task_names(source: str) -> Iterator[str]:
    if not any(name in source for name in TASKS):  # most modules, which are parsed in vain
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in TASKS:
            yield f"line {node.lineno}: {node.value}"


def test_no_module_knows_a_task_by_its_name() -> None:
    found = {
        name: names
        for name, path in modules().items()
        if not name.startswith((*TABLES, "tests")) and (names := list(task_names(path.read_text())))
    }
    assert found == {}


@pytest.mark.parametrize("name", list(TASKS))
def test_the_torch_half_of_a_task_is_a_subclass_of_the_rest(name: str) -> None:
    half = TORCH_TASKS[name]
    assert issubclass(half, TASKS[name])
    assert half.primary_metric == TASKS[name].primary_metric == next(iter(half.metric_kinds))
    assert trivial_answer(half.primary_metric) == TASKS[name].trivial_answer
    assert task_of({"name": name}) == TASKS[name]()


def test_options_reach_the_half_without_torch() -> None:
    assert task_of({"name": "segmentation", "ignore_index": 7, "background": 0}).outside == 7


def test_what_is_unknown_is_left_to_the_torch_half_to_refuse() -> None:
    assert task_of({"name": "steps"}) == task_of({}) == DEFAULT_TASK()
    assert task_of({"name": "segmentation", "ignore_index": -1}) == DEFAULT_TASK()
    with pytest.raises(SettingsError, match="unknown task 'steps'"):
        task_from_json({"name": "steps"})


FALLS = {"name": "falls", "cost": 3.0}


@pytest.fixture
def falls(install: Install) -> None:
    install("gaitway-falls", {"tasks:falls": "gaitway_falls:Falls"}, **task_modules("falls"))


@pytest.mark.usefixtures("falls")
def test_a_task_of_another_package_is_known_everywhere() -> None:
    """Plans, networks, exported models and a device's judgement take it; torch is imported only to train."""
    plan = with_packages(make_plan().model_copy(update={"task": FALLS}))
    assert plan.packages == {"tasks:falls": "gaitway-falls 1.2"}
    assert live_incompatibility(plan) is None
    assert "gaitway_falls_torch" not in sys.modules
    assert models.MODELS["har_cnn"].learns("falls")
    assert metric_of("missed").label == "missed falls"
    judged = ExampleKind.of(plan, "windows")
    assert judged.task.judge(np.array([0, 1]), np.array([0, 0]), ["still", "fall"]).quality.tolist() == [True, False]
    task = task_from_json(FALLS)
    assert task.primary_metric == "missed"
    assert task.improves(0.1, 0.2)
    assert isinstance(task, ClassificationTask)


@pytest.mark.usefixtures("falls")
def test_a_model_of_it_says_so_and_is_refused_where_the_package_is_missing() -> None:
    described = replace(metadata("linear"), task=FALLS)
    described.check()
    assert described.answered.min_gate_examples == 12
    assert described.answered.target is TargetKind.CLASS
    with pytest.raises(ModelFileError, match="metadata task"):
        replace(described, task={"name": "steps"}).check()


def test_a_torch_half_of_something_else_is_refused_in_words(install: Install) -> None:
    wrong = task_modules("slips")["gaitway_slips"].replace("gaitway_slips_torch:Falls", "gaitway_slips:Falls")
    install("gaitway-slips", {"tasks:slips": "gaitway_slips:Falls"}, gaitway_slips=wrong)
    with pytest.raises(SettingsError, match=r"slips cannot be trained: gaitway_slips:Falls is .*; expected a subclass"):
        task_from_json({"name": "slips"})
