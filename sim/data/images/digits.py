"""MNIST, Fashion-MNIST and EMNIST, which are idx files.

An idx file has a magic number, big-endian sizes, then bytes. LeCun, Cortes, Burges, "The MNIST database of handwritten
digits": 0, 0, 8 (unsigned byte), the number of dimensions, then that many sizes of four bytes.

MNIST and Fashion-MNIST: 70,000 grey images of 28 × 28, ten classes. LeCun, Bottou, Bengio, Haffner, "Gradient-based
learning applied to document recognition", Proc. IEEE 1998; Xiao, Rasul, Vollgraf, "Fashion-MNIST", 2017 (arXiv
1708.07747). Two forms: one .npz with clients and their test sets (every image of MNIST's t10k files is in it, so where
it lies nothing else is read), or the four published idx files.

FEMNIST as EMNIST letters: 145,600 grey images of 28 × 28, 26 letters (upper and lower case in one class). Cohen,
Afshar, Tapson, van Schaik, "EMNIST: extending MNIST to handwritten letters", IJCNN 2017 (arXiv 1702.05373). The
published files hold each image transposed, and count classes from 1. They do not say who wrote what. Differs from the
papers: they use lower-case letters of NIST (Michieli and Ozay 2021: a to j) by writer; for writers see `femnist_leaf`.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from string import ascii_lowercase
from typing import IO

import numpy as np
import numpy.typing as npt

from federation.training.forward import Moments
from har_pipeline import SourceError
from har_pipeline.readers.archive import Layout, Source
from sim.data.images.image_files import DAMAGED, read_bounded, read_next, read_rest
from sim.data.images.reader import EMNIST, FASHION_MNIST, MNIST, ImageReader, LabelledImages, Options, positive

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


DIGITS = tuple("0123456789")
CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
IDX = Layout(
    files=pattern("", "train", "t10k"),
    archives=re.compile(r"mnist", re.IGNORECASE),
    expected="{train,t10k}-{images-idx3,labels-idx1}-ubyte, each with or without .gz",
)


def _reader(name: str, summary: str, labels: tuple[str, ...], moments: Moments) -> ImageReader:
    def npz(source: Source, options: Options) -> LabelledImages:
        if source.count > 1:
            raise SourceError(f"{source.root} holds {source.count} files {name}*.npz; give the path of one")
        for _, member in source.members():
            with member.open() as stream:
                return read_npz(stream, member.name, labels)
        raise SourceError(f"{source.root} has changed while it was read")

    def idx(source: Source, options: Options) -> LabelledImages:
        parts = read_parts(source, "train", "t10k")
        (train, _), _ = parts.values()
        x, y = (np.concatenate(both) for both in zip(*parts.values(), strict=True))
        return LabelledImages(x[:, np.newaxis], y.astype(np.int64), labels, np.arange(len(y)) < len(train))

    packed = Layout(
        files=re.compile(rf"(?:(?<=/)|^){name}[^/]*\.npz$", re.IGNORECASE),
        archives=IDX.archives,
        expected=f"{name}*.npz with the arrays X, y, client, is_test",
    )
    return ImageReader(
        name=name,
        summary=summary,
        labels=lambda options: labels,
        layouts=lambda options: (packed, IDX),
        shape=lambda options: (1, 28, 28),
        images=lambda source, options: (npz if source.layout is packed else idx)(source, options),
        moments=moments,
    )


MAX_BYTES = 1 << 30
KINDS = {"X": "u1", "y": "u1", "client": "u1", "is_test": "b1"}

Array = npt.NDArray[np.generic]


def read_npz(stream: IO[bytes], name: str, labels: tuple[str, ...]) -> LabelledImages:
    """Read one file; clients are named `client-07`. Raises SourceError if it is not in the layout above."""
    content = io.BytesIO(read_bounded(stream, MAX_BYTES, name))
    try:
        with zipfile.ZipFile(content) as packed:
            arrays = {key: _array(packed, key, name) for key in KINDS}
    except (*DAMAGED, KeyError, ValueError) as error:
        raise SourceError(f"{name}: {error}; expected an .npz with the arrays {', '.join(KINDS)}") from error
    x, y, client, is_test = arrays.values()
    if x.ndim != 3:
        raise SourceError(f"{name}: X is {x.shape}; expected (n, height, width)")
    owner = np.array([f"client-{k:02d}" for k in range(256)])[client.astype(np.int64)]
    return LabelledImages(x[:, np.newaxis].view(np.uint8), y.astype(np.int64), labels, ~is_test.astype(bool), owner)


def _array(packed: zipfile.ZipFile, key: str, name: str) -> Array:
    """Read one array whose header must agree with its length, so that nothing is allocated on a header's word."""
    info = packed.getinfo(f"{key}.npy")
    with packed.open(info) as stream:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError(f"{key} is not an array of format 1.0")
        shape, by_column, dtype = np.lib.format.read_array_header_1_0(stream)
        size = math.prod(shape) * dtype.itemsize
        if by_column or dtype.str.lstrip("|") != KINDS[key] or size > MAX_BYTES:
            raise ValueError(f"{key} is {dtype} {shape}; expected {KINDS[key]} in rows of 1 GiB at most")
        return np.frombuffer(read_rest(stream, size, f"{name}, {key}"), dtype=dtype).reshape(shape)


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


READERS = (
    _reader("mnist", "MNIST: 70,000 digits, 28 × 28", DIGITS, MNIST),
    _reader("fashion_mnist", "Fashion-MNIST: 70,000 pieces of clothing, 28 × 28", CLOTHES, FASHION_MNIST),
    ImageReader(
        name="femnist",
        summary="EMNIST letters: 145,600 letters, 28 × 28; option classes (10: a to j)",
        labels=labels,
        shape=lambda options: (1, 28, 28),
        layouts=lambda options: (LAYOUT,),
        images=read,
        moments=EMNIST,
        defaults={"classes": 26},
    ),
)
