"""What a source of examples can tell before it reads anything, and what it loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from gaitway.input_spec import InputSpec
from sim.data.federated_data import FederatedData
from sim.experiment import Experiment

Progress = Callable[[int, str], None]
"""Called with the number of recordings done and the client of the latest."""


class ExampleSource(Protocol):
    """One data set; `options` are those of `--set data.KEY`. All methods raise PipelineError or SettingsError."""

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
