"""What a reader of images consists of, and how it finds its files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from federation.training.forward import Moments
from gaitway.input_spec import Fit
from har_pipeline import SourceError
from har_pipeline.readers.archive import Member, Source
from har_pipeline.readers.reader import DataSetReader, Options
from sim.data.images.labelled import LabelledImages
from sim.errors import SettingsError

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
        return self.images(source if progress is None else _ProgressSource(**vars(source), told=progress), options)


@dataclass(frozen=True, kw_only=True)
class _ProgressSource(Source):
    """A source that tells of each file that it yields."""

    told: Progress

    def members(self) -> Iterator[tuple[re.Match[str], Member]]:
        for number, (match, member) in enumerate(super().members(), 1):
            self.told(number, member.name.rpartition("/")[2])
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
