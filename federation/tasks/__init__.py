"""The table of tasks, and their JSON: what a federation learns, and how well it has learnt it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federation.described import described, from_description
from federation.tasks.classification import Classification
from federation.tasks.masked_reconstruction import MaskedReconstruction
from federation.tasks.segmentation import Segmentation
from federation.tasks.task import Task
from gaitway.plugins import EntryTable, named_subclass

__all__ = ["TASKS", "Task", "task_from_json", "task_to_json"]

TASKS: EntryTable[type[Task]] = EntryTable(
    "tasks",
    {task.name: task for task in (Classification, Segmentation, MaskedReconstruction)},
    check=named_subclass(Task),
)


def task_to_json(task: Task) -> dict[str, Any]:
    """Return {"name": …, every option}."""
    return described(task.name, task)


def task_from_json(description: Mapping[str, Any]) -> Task:
    """Build a task from its name and (some of) its options; numbers may come as text.

    Raises:
        SettingsError: for an unknown task or option, or a value that does not fit.
    """
    return from_description("task", "option", TASKS, description)
