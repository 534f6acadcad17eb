"""FEMNIST as EMNIST letters: 145,600 grey images of 28 × 28, 26 letters (upper and lower case in one class).

Cohen, Afshar, Tapson, van Schaik, "EMNIST: extending MNIST to handwritten letters", IJCNN 2017 (arXiv 1702.05373).
The published files hold each image transposed, and count classes from 1. They do not say who wrote what.
Differs from the papers: they use lower-case letters of NIST (Michieli and Ozay 2021: a to j) by writer; for writers see
`femnist_leaf`.
"""

from __future__ import annotations

import re
from string import ascii_lowercase

import numpy as np

from har_pipeline import SourceError
from har_pipeline.readers.archive import Layout, Source
from sim.data.images.idx import pattern, read_parts
from sim.data.images.labelled import LabelledImages
from sim.data.images.reader import EMNIST, ImageReader, Options, positive

LAYOUT = Layout(
    files=pattern("emnist-letters-", "train", "test"),
    archives=re.compile(r"^gzip\.zip$|emnist", re.IGNORECASE),
    expected="emnist-letters-{train,test}-{images-idx3,labels-idx1}-ubyte, each with or without .gz",
)


def labels(options: Options) -> tuple[str, ...]:
    """Return the first `classes` letters; raises SettingsError where there are not so many."""
    return tuple(ascii_lowercase[: positive(options, "classes", 26)])


def read(source: Source, options: Options) -> LabelledImages:
    """Read the four files, turn the images upright, and count classes from 0."""
    parts = read_parts(source, "train", "test")
    x, y = (np.concatenate(both) for both in zip(*parts.values(), strict=True))
    if y.min() < 1:
        raise SourceError(f"{source.root}: label {y.min()} in EMNIST letters; they count from 1")
    upright = np.ascontiguousarray(x.transpose(0, 2, 1))[:, np.newaxis]
    train = np.arange(len(y)) < len(parts["train"][1])
    everything = LabelledImages(upright, y.astype(np.int64) - 1, tuple(ascii_lowercase), train)
    return everything.first_classes(len(labels(options)))


READER = ImageReader(
    name="femnist",
    summary="EMNIST letters: 145,600 letters, 28 × 28; option classes (10: a to j)",
    labels=labels,
    shape=lambda options: (1, 28, 28),
    layouts=lambda options: (LAYOUT,),
    images=read,
    moments=EMNIST,
    defaults={"classes": 26},
)
