"""The tasks, without torch: what a federation learns, how well it has learnt it, and what a device does with it."""

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
"""What a plan, a checkpoint or an exported model learns that names no task."""


def task_of(description: Mapping[str, Any]) -> TaskDefinition:
    """Return a plan's task from {"name": …, options}.

    An unknown name or option is left to whoever builds the task's torch half to refuse: the default stands for it.
    """
    try:
        found = TASKS[str(description.get("name", DEFAULT_TASK.name))]
        known = {field.name for field in dataclasses.fields(found)}
        return found(**{name: value for name, value in description.items() if name in known})
    except (KeyError, PluginError, TaskError, TypeError):
        return DEFAULT_TASK()


def metric_of(name: str) -> Metric:
    """Return a metric by its name; one that is not known is shown as it is called."""
    return next((task.metric_kinds[name] for task in TASKS.values() if name in task.metric_kinds), Metric(name, name))


def trivial_answer(metric: str) -> str:
    """Say whose score a primary metric is held against."""
    found = (task.trivial_answer for task in TASKS.values() if task.primary_metric == metric)
    return next(found, "of a trivial answer")
