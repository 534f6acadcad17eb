"""The interface of sources of examples: what they know before reading, and what they load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from federation.tasks import TASKS
from federation.tasks.task import Task
from gaitway.input_spec import InputSpec
from gaitway.tasks import TargetKind
from sim.data.federated_data import FederatedData
from sim.errors import SettingsError
from sim.experiment.settings import Experiment

Progress = Callable[[int, str], None]
"""Called with the number of recordings done and the client of the latest."""


class ExampleSource(Protocol):
    """One data set; `options` are those of `--set data.KEY`. All methods raise PipelineError or SettingsError."""

    @property
    def targets(self) -> tuple[TargetKind, ...]:
        """What examples can be answered with: a class each, a class of each pixel, or (by the options) a number."""
        ...

    def labels(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the classes, in the order of their indices."""
        ...

    def number(self, options: Mapping[str, Any]) -> str:
        """Name the number that examples have, with its unit; "" where they have none."""
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


_HAVING = {
    TargetKind.CLASS: "one class per example",
    TargetKind.MASK: "a class per pixel",
    TargetKind.NUMBER: "a number per example",
}


def check_target(name: str, source: ExampleSource, task: Task, options: Mapping[str, Any]) -> None:
    """Refuse a task that learns other targets than a data set has, before models and files are looked at.

    Raises:
        SettingsError: naming the tasks that learn these.
    """
    there = [kind for kind in source.targets if kind is not TargetKind.NUMBER or source.number(options)]
    if task.target is TargetKind.NUMBER and task.target in source.targets and task.target not in there:
        raise SettingsError(
            f"{task.name} learns a number per example, but {name} has none; name its column in a description, as in "
            'number = { column = "heart_rate", unit = "beats/min" }, and give that with --describe'
        )
    if task.target is TargetKind.CLASS and task.target in there and len(source.labels(options)) < task.min_labels:
        raise SettingsError(f"{task.name} learns classes, but {name} names none; add them to its description's labels")
    if any(task.takes(kind) for kind in there):
        return
    fitting = " or ".join(other.name for other in TASKS.values() if any(other.takes(kind) for kind in there))
    has = " and ".join(_HAVING[kind] for kind in there)
    raise SettingsError(f"{name} has {has}, but {task.name} learns another target; use --task {fitting}")
