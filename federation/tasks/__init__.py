"""The torch half of each task, and their JSON; `gaitway.tasks` has what is known without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from federation.errors import SettingsError
from federation.plan.strict import described, from_description
from federation.tasks.task import Task
from gaitway import tasks
from gaitway.plugins import PluginError

__all__ = ["TASKS", "Task", "task_from_json", "task_to_json"]


class TorchTasks(Mapping[str, type[Task]]):
    """The torch half of every task of `gaitway.tasks`, by name; a module is imported when it is first asked for."""

    def __getitem__(self, name: str) -> type[Task]:
        """Return a task's torch half.

        Raises:
            KeyError: if there is no such task.
            PluginError: if it cannot be imported, or is not a torch half of that task.
        """
        definition = tasks.TASKS[name]
        module, _, target = definition.trained_by.partition(":")
        try:
            found = getattr(import_module(module), target)
        except (ImportError, AttributeError) as error:
            raise PluginError(f"the task {name} cannot be trained: {definition.trained_by}: {error}") from error
        if not (isinstance(found, type) and issubclass(found, Task) and issubclass(found, definition)):
            raise PluginError(
                f"the task {name} cannot be trained: {definition.trained_by} is {found!r}; expected a subclass of "
                f"{definition.__module__}.{definition.__qualname__} and of {Task.__module__}.{Task.__qualname__}"
            )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(tasks.TASKS)

    def __len__(self) -> int:
        return len(tasks.TASKS)

    def __contains__(self, name: object) -> bool:
        return name in tasks.TASKS


TASKS = TorchTasks()


def task_to_json(task: Task) -> dict[str, Any]:
    """Return {"name": …, every option}."""
    return described(task.name, task)


def task_from_json(description: Mapping[str, Any]) -> Task:
    """Build a task from its name and (some of) its options; numbers may come as text.

    Raises:
        SettingsError: for an unknown task or option, or a value that does not fit.
    """
    try:
        return from_description("task", "option", TASKS, description)
    except tasks.TaskError as error:
        raise SettingsError(str(error)) from error
