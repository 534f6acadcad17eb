"""Folders of images, `{train,test}/{class}/NAME.jpg`: CIFAR as JPEG files, or any data set of one's own."""

from __future__ import annotations

import re

import numpy as np

from federation.training.forward import Moments
from gaitway.errors import unknown_class
from har_pipeline import SourceError
from har_pipeline.readers.archive import Layout, Source
from sim.data.images.cifar import CIFAR10_LABELS, CIFAR100_LABELS
from sim.data.images.image_files import read_image
from sim.data.images.reader import (
    CIFAR10,
    CIFAR100,
    COLOUR_TO_ONE,
    ImageReader,
    LabelledImages,
    Options,
    positive,
    square,
)
from sim.errors import SettingsError

MAX_SIDE = 1024
FILES = re.compile(r"(?:(?<=/)|^)(?P<part>train|test)/(?P<label>[^/]+)/[^/]+\.(?:jpe?g|png)$", re.IGNORECASE)


def labels(options: Options) -> tuple[str, ...]:
    """Return the option `labels`: the names of the classes' folders, in order; SettingsError where it is missing."""
    given = options["labels"]
    if isinstance(given, str) or len(given) < 2 or len(set(given)) != len(given):
        raise SettingsError(f"option labels is {given!r}; expected the names of two or more classes' folders, in order")
    return tuple(given)


def read(source: Source, options: Options) -> LabelledImages:
    """Read every image, ordered by part, class and name whatever the container's order is."""
    names, side = labels(options), positive(options, "side", MAX_SIDE)
    found: list[tuple[str, int, bool, np.ndarray]] = []
    for match, member in source.members():
        label = match["label"]
        if label not in names:
            raise SourceError(f"{member.name} is in the folder {label!r}; {unknown_class(label, names)}")
        with member.open() as stream:
            image = read_image(stream, member.name, side)
        found.append((member.name, names.index(label), match["part"].lower() == "train", image))
    found.sort(key=lambda entry: (not entry[2], entry[1], entry[0]))
    _, y, train, images = zip(*found, strict=True)
    return LabelledImages(np.stack(images), np.array(y, dtype=np.int64), names, np.array(train))


def _reader(name: str, summary: str, names: tuple[str, ...], archives: str, moments: Moments) -> ImageReader:
    layout = Layout(
        files=FILES,
        archives=re.compile(archives, re.IGNORECASE),
        expected="{train,test}/{class}/NAME.jpg",
    )
    return ImageReader(
        name=name,
        summary=summary,
        labels=labels,
        shape=lambda options: square(options, MAX_SIDE),
        layouts=lambda options: (layout,),
        images=read,
        moments=moments,
        defaults={"labels": names, "side": 32},
    )


READERS = (
    _reader(
        "cifar10_jpg",
        "CIFAR-10 as JPEG files: lossy, so scores do not compare with published ones",
        CIFAR10_LABELS,
        r"cifar.?10(?!\d)",
        CIFAR10,
    ),
    _reader(
        "cifar100_jpg",
        "CIFAR-100 as JPEG files: lossy, so scores do not compare with published ones",
        CIFAR100_LABELS,
        r"cifar.?100",
        CIFAR100,
    ),
    _reader("image_folder", "any images in {train,test}/{class}/; options labels, side", (), r".", COLOUR_TO_ONE),
)
