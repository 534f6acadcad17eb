"""FEMNIST as LEAF writes it: JSON files of writers, 28 × 28 images of 62 characters.

Caldas et al., "LEAF: a benchmark for federated settings", 2018 (arXiv 1812.01097). `train/*.json` and `test/*.json`:
{"users": [...], "user_data": {writer: {"x": [[784 numbers from 0 to 1], ...], "y": [...]}}}; the paper is white (1).
Memory: a file is parsed at once, about 25 kB an image (LEAF writes 100 writers, 20,000 images, a file).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np

from har_pipeline import SourceError
from har_pipeline.readers.archive import Layout, Member, Source
from sim.data.images.image_files import read_bounded
from sim.data.images.reader import GREY_TO_ONE, ImageReader, LabelledImages, Options

LABELS = tuple(digits + ascii_uppercase + ascii_lowercase)
SIDE = 28
MAX_BYTES = 1 << 30
LAYOUT = Layout(
    files=re.compile(r"(?:(?<=/)|^)(?P<part>train|test)/[^/]+\.json(\.gz)?$"),
    archives=re.compile(r"leaf|femnist", re.IGNORECASE),
    expected="LEAF's train/*.json and test/*.json with users and user_data",
)

Written = tuple[np.ndarray, np.ndarray, str, bool]


def read(source: Source, options: Options) -> LabelledImages:
    """Read every writer's images; the client is the writer."""
    written = [entry for match, member in source.members() for entry in _file(member, match["part"] == "train")]
    written.sort(key=lambda entry: (entry[2], not entry[3]))
    counts = [len(y) for _, y, _, _ in written]
    return LabelledImages(
        np.concatenate([x for x, *_ in written]),
        np.concatenate([y for _, y, *_ in written]),
        LABELS,
        np.repeat([train for *_, train in written], counts),
        np.repeat([writer for _, _, writer, _ in written], counts),
    )


def _file(member: Member, train: bool) -> Iterator[Written]:
    with member.open() as stream:
        content = read_bounded(stream, MAX_BYTES, member.name)
    try:
        writers = json.loads(content)["user_data"]
        for writer, data in writers.items():
            yield *_images(data), str(writer), train
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{member.name}: {error!r}; expected {LAYOUT.expected}, x of {SIDE * SIDE} numbers"
        ) from error


def _images(data: Any) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.array(data["x"], dtype=np.float64), np.array(data["y"], dtype=np.int64)
    if x.shape != (len(y), SIDE * SIDE) or not (x.min() >= 0 and x.max() <= 1):
        raise ValueError(f"x is {x.shape} for {len(y)} labels, or has numbers outside 0 to 1")
    return np.rint(255 * x).astype(np.uint8).reshape(-1, 1, SIDE, SIDE), y


READER = ImageReader(
    name="femnist_leaf",
    summary="FEMNIST as LEAF writes it: 62 characters by writer, 28 × 28",
    labels=lambda options: LABELS,
    shape=lambda options: (1, SIDE, SIDE),
    layouts=lambda options: (LAYOUT,),
    images=read,
    has_clients=lambda options: True,
    moments=GREY_TO_ONE,
)
