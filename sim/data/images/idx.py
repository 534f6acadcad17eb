"""The idx format of MNIST, Fashion-MNIST and EMNIST: a magic number, big-endian sizes, then bytes.

LeCun, Cortes, Burges, "The MNIST database of handwritten digits": 0, 0, 8 (unsigned byte), the number of dimensions,
then that many sizes of four bytes.
"""

from __future__ import annotations

import re
from typing import IO

import numpy as np
import numpy.typing as npt

from har_pipeline import SourceError
from har_pipeline.readers.archive import Source
from sim.data.images.bounded_read import read_next, read_rest

SIDE = 28
MAX_IMAGES = 1_000_000
UNSIGNED_BYTE = 8

Bytes = npt.NDArray[np.uint8]
Parts = dict[str, tuple[Bytes, Bytes]]


def read_parts(source: Source, train: str, test: str) -> Parts:
    """Return {"train", "test": (images (n, 28, 28), labels (n,))} of files whose pattern gives part and kind.

    `train` and `test` are the parts' names in the file names. Raises SourceError for a missing or false file.
    """
    files: dict[tuple[str, str], Bytes] = {}
    for match, member in source.members():
        part, kind = match["part"], match["kind"]
        with member.open() as stream:
            files[part, kind] = read_idx(stream, member.name, (SIDE, SIDE) if kind == "images" else ())
    return {"train": _part(files, train, source), "test": _part(files, test, source)}


def _part(files: dict[tuple[str, str], Bytes], part: str, source: Source) -> tuple[Bytes, Bytes]:
    for kind in ("images", "labels"):
        if (part, kind) not in files:
            raise SourceError(f"{source.root} has no {part} {kind}; expected {source.layout.expected}")
    images, labels = files[part, "images"], files[part, "labels"]
    if len(images) != len(labels):
        raise SourceError(f"{source.root}: {len(images)} {part} images, but {len(labels)} labels; they must agree")
    return images, labels


def read_idx(stream: IO[bytes], name: str, inner: tuple[int, ...]) -> Bytes:
    """Read one file of unsigned bytes (n, *inner); its length must be what its header says."""
    dimensions = 1 + len(inner)
    header = read_next(stream, 4 + 4 * dimensions, name)
    magic, sizes = tuple(header[:4]), tuple(np.frombuffer(header[4:], dtype=">u4").tolist())
    if magic != (0, 0, UNSIGNED_BYTE, dimensions):
        raise SourceError(f"{name} begins with {magic}; expected {(0, 0, UNSIGNED_BYTE, dimensions)} of an idx file")
    if sizes[1:] != inner or not 1 <= sizes[0] <= MAX_IMAGES:
        raise SourceError(f"{name} says that it holds {sizes}; expected (1 to {MAX_IMAGES:,}, *{inner})")
    content = read_rest(stream, int(np.prod(sizes)), name)
    return np.frombuffer(content, dtype=np.uint8).reshape(sizes)


def pattern(prefix: str, train: str, test: str) -> re.Pattern[str]:
    """Match a data set's file names: `{prefix}{part}-{kind}-idx{n}-ubyte`, with or without .gz."""
    kinds = "images(?=[-.]idx3)|labels(?=[-.]idx1)"
    return re.compile(rf"(?:(?<=/)|^){prefix}(?P<part>{train}|{test})-(?P<kind>{kinds})[-.]idx[13]-ubyte(\.gz)?$")
