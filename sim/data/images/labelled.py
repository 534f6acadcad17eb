"""What every reader of images returns: all images of a data set with their classes, parts and clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from federation.tasks.task import Task
from har_pipeline import SourceError
from sim.data.partitions import Pool


class PartitionTargets(NamedTuple):
    """The class (n,) int64 that partitions deal each image by, apart from its target, and the classes' names."""

    y: npt.NDArray[np.int64]
    labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images x (n, channels, height, width) uint8 as published, and the target y of each.

    y is a class (n,) int64, or of each pixel its class: masks (n, height, width) uint8, 255 where none is given.
    `labels` names the classes. `train` (n,) bool: the published training part, the rest is the published test part.
    `client` (n,) str: the writer, person or client that an image comes from, None where the data do not say.
    `partition_targets`: what partitions deal by, where it is not what the task makes of the targets.
    `validation` (n,) bool: what of the training part was published to choose by; None where nothing was.
    """

    x: npt.NDArray[np.uint8]
    y: npt.NDArray[np.int64] | npt.NDArray[np.uint8]
    labels: tuple[str, ...]
    train: npt.NDArray[np.bool_]
    client: npt.NDArray[np.str_] | None = None
    partition_targets: PartitionTargets | None = None
    validation: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not fit each other; raises SourceError."""
        if self.x.dtype != np.uint8 or self.x.ndim != 4:
            raise SourceError(f"images came as {self.x.dtype} {self.x.shape}; expected uint8 (n, channels, h, w)")
        dealt = None if self.partition_targets is None else self.partition_targets.y
        parts = (self.x, self.y, self.train, self.client, dealt, self.validation)
        lengths = {len(part) for part in parts if part is not None}
        if len(lengths) > 1:
            raise SourceError(f"images, labels, parts and clients differ in number: {sorted(lengths)}")
        if self.has_masks:
            self._check_masks()
        else:
            _check_range(self.y, self.labels)
        if self.partition_targets is not None:
            _check_range(self.partition_targets.y, self.partition_targets.labels)

    def _check_masks(self) -> None:
        if self.y.dtype != np.uint8 or self.y.shape[1:] != self.x.shape[2:]:
            raise SourceError(
                f"masks came as {self.y.dtype} {self.y.shape[1:]} for images of {self.x.shape[2:]}; expected uint8 of "
                "the same height and width"
            )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def has_masks(self) -> bool:
        """Whether a target is a mask, not a class."""
        return self.y.ndim > 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return self.x.shape[1], self.x.shape[2], self.x.shape[3]

    def targets_for_partition(self, task: Task) -> PartitionTargets:
        """Return what partitions deal by: what the reader says, else what the task makes of the targets."""
        if self.partition_targets is not None:
            return self.partition_targets
        return PartitionTargets(task.partition_label(torch.from_numpy(self.y)).numpy(), self.labels)

    def pool(self, task: Task) -> Pool:
        """Return what a partition divides: classes to deal by, parts and clients without the images."""
        classes, labels = self.targets_for_partition(task)
        return Pool(classes, len(labels), self.train, self.client)

    def first_classes(self, classes: int) -> LabelledImages:
        """Keep the images of the first so many classes (10 of the 26 letters: a to j)."""
        if classes >= len(self.labels):
            return self
        kept = self.y < classes
        client = None if self.client is None else self.client[kept]
        return replace(
            self, x=self.x[kept], y=self.y[kept], labels=self.labels[:classes], train=self.train[kept], client=client
        )


def _check_range(y: npt.NDArray[np.integer], labels: tuple[str, ...]) -> None:
    if len(y) and not (y.min() >= 0 and y.max() < len(labels)):
        raise SourceError(f"labels from {y.min()} to {y.max()}; expected 0 to {len(labels) - 1}")
