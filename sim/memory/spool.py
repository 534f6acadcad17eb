"""Trees of tensors in one large file without a name: views of its pages, in a place that is used again.

One sparse file, mapped a GiB at a time: a mapping for each client would soon meet the kernel's limit of 65,530, and a
file for each one that of open files. Written by `pwrite`, never through the mapping, where a full disk would be SIGBUS.

On the disk the kernel writes pages out and evicts them. In memory they are shared with forks: what the parent writes
is not copied for them first, as it is in memory of its own.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from federation.records import Tree
from sim.errors import SpoolError
from sim.memory.packing import lay_out, write

SEGMENT = 1 << 30
"""Bytes that are mapped at a time; address space, not memory. A larger tree gets a larger segment."""
PAGE = mmap.PAGESIZE

Layout = dict[str, Any]


class Slot:
    """A stretch of the file, which is free again once neither this nor a tensor over it is referred to."""

    __slots__ = ("_address", "_size", "_spool", "position")

    def __init__(self, spool: Spool, position: int, address: int, size: int) -> None:
        self.position, self._address, self._size, self._spool = position, address, size, spool

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # numpy's array has this object as its base, and torch's tensor the array: so views keep the slot
        return {"version": 3, "typestr": "|u1", "shape": (self._size,), "data": (self._address, False)}

    @property
    def memory(self) -> Tensor:
        """Its bytes: uint8 (size,)."""
        return torch.from_numpy(np.asarray(self))

    def __del__(self) -> None:
        self._spool.take_back(self.position, self._address, self._size)


class Spool:
    """A file in `folder`, or in memory where there is none, that vanishes with its last user, however that ends.

    Raises:
        SpoolError: if the folder cannot hold such a file.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._file = os.memfd_create("gaitway-spool") if folder is None else _unlinked(folder)
        weakref.finalize(self, os.close, self._file)
        self._mapped: list[np.ndarray] = [np.empty(0, np.uint8)]  # segments, one after the other
        self._begin = self._end = 0  # of the last segment, and of what is laid
        self._free: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self._scratch = torch.empty(0, dtype=torch.uint8)

    @property
    def bytes_taken(self) -> int:
        """Bytes of the disk."""
        return os.fstat(self._file).st_blocks * 512

    def lay(self, tree: Tree) -> tuple[Slot, Layout]:
        """Write a tree into a free slot; `packing.read(layout, slot.memory)` are its tensors.

        Raises:
            SpoolError: if the disk is full.
        """
        packing = lay_out(tree)
        if len(self._scratch) < packing.size:
            self._scratch = torch.empty(packing.size, dtype=torch.uint8)
        write(packing, self._scratch)
        return self.hold(self._scratch[: packing.size]), packing.layout

    def hold(self, data: Tensor) -> Slot:
        """Write bytes, uint8 (n,), into a free slot.

        Raises:
            SpoolError: if the disk is full.
        """
        size = max(PAGE, -(-len(data) // PAGE) * PAGE)
        try:
            slot = self._slot(size)
            _write(self._file, data.numpy().data, slot.position)
        except OSError as error:
            raise SpoolError(self._full(size, error)) from error
        return slot

    def take_back(self, position: int, address: int, size: int) -> None:
        """Give a slot's place to the next tree of its size; the file is not shortened."""
        self._free[size].append((position, address))

    def _slot(self, size: int) -> Slot:
        if self._free[size]:
            return Slot(self, *self._free[size].pop(), size)
        if self._end + size > self._begin + len(self._segment):
            self._map(max(SEGMENT, size))
        if self.folder and hasattr(os, "posix_fallocate"):
            # blocks before bytes: some file systems promise what they do not have
            os.posix_fallocate(self._file, self._end, size)
        slot = Slot(self, self._end, self._segment.ctypes.data + self._end - self._begin, size)
        self._end += size
        return slot

    def _map(self, length: int) -> None:
        start = self._begin + len(self._segment)
        os.ftruncate(self._file, start + length)  # sparse: takes nothing yet
        self._mapped.append(np.frombuffer(mmap.mmap(self._file, length, offset=start), np.uint8))
        self._begin = self._end = start

    @property
    def _segment(self) -> np.ndarray:
        return self._mapped[-1]

    def _full(self, size: int, error: OSError) -> str:
        todo = "give another folder with --spool" if self.folder else "train fewer clients a round"
        return (
            f"{self.folder or 'memory'}: no room for {size:,} more bytes beside the {self.bytes_taken:,} of the "
            f"clients' models that are laid there ({error.strerror}); free some, or {todo}"
        )


def _unlinked(folder: Path) -> int:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise SpoolError(f"{folder}: the clients' models cannot be laid there ({error.strerror})") from error


def _write(file: int, data: memoryview, position: int) -> None:
    done = 0
    while done < len(data):  # the kernel takes 2 GB at most at a time
        done += os.pwrite(file, data[done:], position + done)
