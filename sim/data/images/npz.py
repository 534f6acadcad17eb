"""Images that were published again as .npz: X (n, 28, 28) and y (n,), client (n,), is_test (n,), all small integers."""

from __future__ import annotations

import io
import math
import zipfile
from typing import IO

import numpy as np
import numpy.typing as npt

from har_pipeline import SourceError
from sim.data.images.bounded import DAMAGED, read_at_most, read_rest
from sim.data.images.labelled import LabelledImages

MOST_BYTES = 1 << 30
KINDS = {"X": "u1", "y": "u1", "client": "u1", "is_test": "b1"}

Array = npt.NDArray[np.generic]


def read_npz(stream: IO[bytes], name: str, labels: tuple[str, ...]) -> LabelledImages:
    """Read one file; clients are named `client-07`. Raises SourceError if it is not in the layout above."""
    content = io.BytesIO(read_at_most(stream, MOST_BYTES, name))
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
        if by_column or dtype.str.lstrip("|") != KINDS[key] or size > MOST_BYTES:
            raise ValueError(f"{key} is {dtype} {shape}; expected {KINDS[key]} in rows of 1 GiB at most")
        return np.frombuffer(read_rest(stream, size, f"{name}, {key}"), dtype=dtype).reshape(shape)
