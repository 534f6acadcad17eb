"""What a source of examples can tell before it reads anything, and what it loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from sim.data.federated_data import FederatedData
from sim.experiment import Experiment

Progress = Callable[[int, str], None]
"""Called with the number of recordings done and the client of the latest."""


class Source(Protocol):
    """One data set; `options` are those of `--set data.KEY`. All methods raise PipelineError or SettingsError."""

    def labels(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the classes, in the order of their indices."""
        ...

    def shape(self, options: Mapping[str, Any]) -> tuple[int, ...]:
        """Return one example's shape: (time, channels), (channels, height, width) or (numbers,)."""
        ...

    def load(
        self, settings: Experiment, root: Path | None, cache: Path | None, progress: Progress | None
    ) -> FederatedData:
        """Read, divide and normalize all clients' examples."""
        ...
