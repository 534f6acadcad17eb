"""MNIST and Fashion-MNIST: 70,000 grey images of 28 × 28, ten classes.

LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", Proc. IEEE 1998; Xiao, Rasul,
Vollgraf, "Fashion-MNIST", 2017 (arXiv 1708.07747). Two forms: one .npz with clients and their test sets (every image of
MNIST's t10k files is in it, so where it lies nothing else is read), or the four published idx files.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from typing import IO

import numpy as np
import numpy.typing as npt

from federation.training.forward import Moments
from har_pipeline import SourceError
from har_pipeline.readers.archive import Layout, Source
from sim.data.images.bounded_read import DAMAGED, read_bounded, read_rest
from sim.data.images.idx import pattern, read_parts
from sim.data.images.labelled import LabelledImages
from sim.data.images.reader import FASHION_MNIST, MNIST, ImageReader, Options

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


READERS = (
    _reader("mnist", "MNIST: 70,000 digits, 28 × 28", DIGITS, MNIST),
    _reader("fashion_mnist", "Fashion-MNIST: 70,000 pieces of clothing, 28 × 28", CLOTHES, FASHION_MNIST),
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
