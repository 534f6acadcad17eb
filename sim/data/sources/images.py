"""Images as a source: read as published, then dealt to clients by a partition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gaitway.input_spec import InputSpec
from sim.data.federated_data import FederatedData
from sim.data.images import ImageReader, image_federation
from sim.data.partitions import PARTITIONS, partition_from_json, with_validation
from sim.data.sources.source import Progress
from sim.errors import SettingsError
from sim.experiment import Experiment


class Images:
    """One set of images."""

    def __init__(self, reader: ImageReader) -> None:
        self._reader = reader

    def labels(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the classes."""
        return self._reader.labels(self._reader.options(options))

    def input_spec(self, options: Mapping[str, Any], pipeline: Mapping[str, Any]) -> InputSpec:
        """Describe an image."""
        shape = self._reader.shape(self._reader.options(options))
        return InputSpec.images(shape, (0.0,) * shape[0], (1.0,) * shape[0])

    def load(
        self, settings: Experiment, root: Path | None, cache: Path | None, progress: Progress | None
    ) -> FederatedData:
        """Read all images and deal them.

        Raises:
            SettingsError: without a partition.
        """
        if settings.partition is None:
            raise SettingsError(f"{self._reader.name} is one pile of images; give --partition {'|'.join(PARTITIONS)}")
        images = self._reader.read(root, settings.dataset_options)
        dealt = partition_from_json(settings.partition).divide(images.pool, settings.training.seed)
        shares = with_validation(dealt, images.y, settings.validation_share)
        return image_federation(images, shares, self._reader.moments, settings.device)
