"""Readers of image data sets, and what each returns: images with their classes, parts and clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from federation.tasks.task import Task
from federation.training.forward import Moments
from gaitway.input_spec import Fit
from har_pipeline import SourceError
from har_pipeline.readers.archive import Member, Source
from har_pipeline.readers.reader import DataSetReader, Options
from sim.data.partitions import Pool
from sim.errors import SettingsError


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
            raise SourceError(f"images are {self.x.dtype} {self.x.shape}; expected uint8 (n, channels, h, w)")
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
                f"masks are {self.y.dtype} {self.y.shape[1:]} for images of {self.x.shape[2:]}; expected uint8 of "
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


# Moments of the training images; the first two are those of PyTorch's examples, and a test computes them again.
MNIST = Moments((0.1307,), (0.3081,))
FASHION_MNIST = Moments((0.2860,), (0.3530,))
# Of all of EMNIST, as is usual for its parts.
EMNIST = Moments((0.1722,), (0.3309,))
# Pooled over images and pixels; the widespread std (0.2023, …) for CIFAR-10 is a mean of per-image deviations.
CIFAR10 = Moments((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = Moments((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
# Of ImageNet, as torchvision's networks are trained: segmentation starts from their weights.
IMAGENET = Moments((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# To [−1, 1], where no constants are established (CelebA, FEMNIST by LEAF, folders of images).
GREY_TO_ONE = Moments((0.5,), (0.5,))
COLOUR_TO_ONE = Moments((0.5,) * 3, (0.5,) * 3)

__all__ = ["ImageReader", "Options", "chosen", "positive", "square"]

Progress = Callable[[int, str], None]
"""Called with the number of files that were looked at and the latest one's name."""


@dataclass(frozen=True, kw_only=True)
class ImageReader(DataSetReader):
    """A set of images: the shape (channels, height, width), how its files are read, and what normalizes its channels.

    `target`: whether an image has one class, or a mask with a class of each pixel. `fit`: how images of other sizes
    come into the shape. `has_clients`: whether the set itself says whose an image is, whatever its layout.
    `images` gets the files of the first layout that was found; where there are several, `source.layout` says which.
    """

    shape: Callable[[Options], tuple[int, int, int]]
    images: Callable[[Source, Options], LabelledImages]
    moments: Moments
    target: Literal["class", "mask"] = "class"
    fit: Callable[[Options], Fit] = lambda options: "stretch"
    has_clients: Callable[[Options], bool] = lambda options: False

    def read(
        self, root: Path | str | None, given: Options | None = None, progress: Progress | None = None
    ) -> LabelledImages:
        """Read the first layout that lies under root, a folder, an archive or a file.

        `progress` hears of the number of files that were looked at, and the latest.

        Raises:
            SettingsError: of har_pipeline for an unknown option, of sim for a value that does not fit.
            SourceError: if no layout is found, or a file is not what its layout says.
        """
        options = self.options(given)
        # false options are told before the files are searched
        self.labels(options), self.shape(options)
        source = self.open(root, options)
        if source is None:
            raise SourceError(f"{self.name} has no layout to look for")
        return self.images(source if progress is None else _ProgressSource(**vars(source), report=progress), options)


@dataclass(frozen=True, kw_only=True)
class _ProgressSource(Source):
    """A source that tells of each file that it yields."""

    report: Progress

    def members(self) -> Iterator[tuple[re.Match[str], Member]]:
        for number, (match, member) in enumerate(super().members(), 1):
            self.report(number, member.name.rpartition("/")[2])
            yield match, member


def positive(options: Options, key: str, most: int) -> int:
    """Return an option that counts something; raises SettingsError where it is no whole number from 1 to `most`."""
    value = options[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise SettingsError(f"option {key} is {value!r}; expected a whole number from 1 to {most}")
    return value


def square(options: Options, most: int) -> tuple[int, int, int]:
    """Return the shape of colour images whose option `side` is at most so many pixels."""
    side = positive(options, "side", most)
    return 3, side, side


def chosen(options: Options, key: str, among: tuple[str, ...]) -> str:
    """Return an option that is one of some words; raises SettingsError where it is none of them."""
    value = options[key]
    if value not in among:
        raise SettingsError(f"option {key} is {value!r}; expected {' or '.join(among)}")
    return str(value)
