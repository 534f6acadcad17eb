"""What every reader of images returns: all images of a data set with their classes, parts and clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from har_pipeline import SourceError
from sim.data.partitions import Pool


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images x (n, channels, height, width) uint8 as published, and of each its class y (n,) int64.

    `labels` names the classes. `train` (n,) bool: the published training part, the rest is the published test part.
    `client` (n,) str: the writer, person or client that an image comes from, None where the data do not say.
    """

    x: npt.NDArray[np.uint8]
    y: npt.NDArray[np.int64]
    labels: tuple[str, ...]
    train: npt.NDArray[np.bool_]
    client: npt.NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not fit each other; raises SourceError."""
        if self.x.dtype != np.uint8 or self.x.ndim != 4:
            raise SourceError(f"images came as {self.x.dtype} {self.x.shape}; expected uint8 (n, channels, h, w)")
        lengths = {len(part) for part in (self.x, self.y, self.train, self.client) if part is not None}
        if len(lengths) > 1:
            raise SourceError(f"images, labels, parts and clients differ in number: {sorted(lengths)}")
        if len(self.y) and not (self.y.min() >= 0 and self.y.max() < len(self.labels)):
            raise SourceError(f"labels from {self.y.min()} to {self.y.max()}; expected 0 to {len(self.labels) - 1}")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return self.x.shape[1], self.x.shape[2], self.x.shape[3]

    @property
    def pool(self) -> Pool:
        """What a partition divides: classes, parts and clients without the images."""
        return Pool(self.y, len(self.labels), self.train, self.client)

    def first_classes(self, classes: int) -> LabelledImages:
        """Keep the images of the first so many classes (10 of the 26 letters: a to j)."""
        if classes >= len(self.labels):
            return self
        kept = self.y < classes
        client = None if self.client is None else self.client[kept]
        return LabelledImages(self.x[kept], self.y[kept], self.labels[:classes], self.train[kept], client)
