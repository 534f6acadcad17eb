"""Reads a continuous federation's latest published sums over everyone's windows, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from edge_agent.errors import StoreError
from edge_agent.storage.data_folder import BLOBS
from federation.aggregation.ridge_numpy import FixedSums

_NAMES = ("sums/gram", "sums/moment", "sums/clients")


class SharedSums(NamedTuple):
    """The sums of a broadcast, and of how many clients they are; `version` is the broadcast's sha256."""

    version: str
    sums: FixedSums
    clients: int


def newest_broadcast(folder: Path) -> Path | None:
    """Return the newest downloaded file of a data folder, whose bytes were verified; None if there is none."""
    files = [path for path in (folder / BLOBS).glob("*") if len(path.name) == 64]
    return max(files, key=lambda path: path.stat().st_mtime, default=None)


def read_shared_sums(path: Path, classes: int) -> SharedSums:
    """Read the sums of a broadcast of a federation with so many classes.

    Raises:
        StoreError: if the file holds none, or not as many classes.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            if missing := sorted({*_NAMES} - {*file.keys()}):
                raise StoreError(f"the federation's last model has no {missing[0]}: it learns by training, not by sums")
            gram, moment, clients = (file.get_tensor(name) for name in _NAMES)
    except (OSError, SafetensorError) as error:
        raise StoreError(f"the federation's last model cannot be read: {error}") from error
    size = moment.shape[0] if moment.ndim == 2 else 0
    if gram.shape != (size * (size + 1) // 2,) or moment.shape != (size, classes) or clients.shape != ():
        raise StoreError(
            f"the federation's last model has sums of shape {gram.shape} and {moment.shape}; expected {classes} classes"
        )
    return SharedSums(path.name, FixedSums(gram.astype(np.int64), moment.astype(np.int64)), int(clients))
