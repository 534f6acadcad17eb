"""What a source of examples can tell before it reads anything, and what it loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from federation.tasks import TASKS
from federation.tasks.task import Task
from gaitway.input_spec import InputSpec
from sim.data.federated_data import FederatedData
from sim.errors import SettingsError
from sim.experiment import Experiment

Progress = Callable[[int, str], None]
"""Called with the number of recordings done and the client of the latest."""


class ExampleSource(Protocol):
    """One data set; `options` are those of `--set data.KEY`. All methods raise PipelineError or SettingsError."""

    @property
    def target(self) -> Literal["class", "mask"]:
        """Whether an example has one class, or a mask with a class of each pixel."""
        ...

    def labels(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the classes, in the order of their indices."""
        ...

    def input_spec(self, options: Mapping[str, Any], pipeline: Mapping[str, Any]) -> InputSpec:
        """Describe one example before normalization; `pipeline` are changes of how recordings become windows."""
        ...

    def default_partition(self, options: Mapping[str, Any]) -> str | None:
        """Return the kind of partition that is taken where none is named; None: nothing is to be divided."""
        ...

    def load(
        self, settings: Experiment, root: Path | None, cache: Path | None, progress: Progress | None
    ) -> FederatedData:
        """Read, divide and normalize all clients' examples."""
        ...


def check_target(name: str, source: ExampleSource, task: Task) -> None:
    """Refuse a task that learns other targets than a data set has, before models and files are looked at.

    Raises:
        SettingsError: naming the tasks that learn these.
    """
    if task.takes(source.target):
        return
    fitting = " or ".join(each.name for each in TASKS.values() if each.takes(source.target))
    has = "a class of each pixel" if source.target == "mask" else "one class an example"
    raise SettingsError(f"{name} has {has}, {task.name} learns another target; give --task {fitting}")
