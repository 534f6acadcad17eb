"""The tasks, without torch: what a federation learns, how it is scored, and how devices use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gaitway.plugins import EntryTable, PluginError, named_subclass
from gaitway.tasks.classification import ClassificationTask
from gaitway.tasks.definition import Answers, Judgement, Quality, TargetKind, TaskDefinition, TaskError
from gaitway.tasks.masked_reconstruction import MaskedReconstructionTask
from gaitway.tasks.regression import RegressionTask
from gaitway.tasks.segmentation import SegmentationTask
from gaitway.tasks.soundness import TRIVIAL, Metric, Soundness

__all__ = [
    "DEFAULT_TASK",
    "TASKS",
    "TRIVIAL",
    "Answers",
    "Judgement",
    "Metric",
    "Quality",
    "Soundness",
    "TargetKind",
    "TaskDefinition",
    "TaskError",
    "metric_of",
    "task_of",
    "trivial_answer",
]

TASKS: EntryTable[type[TaskDefinition]] = EntryTable(
    "tasks",
    {task.name: task for task in (ClassificationTask, SegmentationTask, MaskedReconstructionTask, RegressionTask)},
    check=named_subclass(TaskDefinition),
)

DEFAULT_TASK: type[TaskDefinition] = ClassificationTask
"""The task of a plan, checkpoint or exported model that doesn't name one."""


def task_of(description: Mapping[str, Any]) -> TaskDefinition:
    """Return a plan's task from {"name": …, options}.

    An unknown name or option yields the default; building the task's torch half rejects it.
    """
    try:
        found = TASKS[str(description.get("name", DEFAULT_TASK.name))]
        known = {field.name for field in dataclasses.fields(found)}
        return found(**{name: value for name, value in description.items() if name in known})
    except (KeyError, PluginError, TaskError, TypeError):
        return DEFAULT_TASK()


def metric_of(name: str) -> Metric:
    """Return a metric by its name; an unknown one is shown by its name."""
    return next((task.metric_kinds[name] for task in TASKS.values() if name in task.metric_kinds), Metric(name, name))


def trivial_answer(metric: str) -> str:
    """Say which baseline a primary metric is compared with."""
    found = (task.trivial_answer for task in TASKS.values() if task.primary_metric == metric)
    return next(found, "of a trivial answer")
