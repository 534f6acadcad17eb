"""Trees of tensors in memory that processes share: as one block of bytes, and in an arena of mapped pages.

A memory-mapped arena for trees of tensors: an unlinked temporary file, whose pages are viewed and used again.
One sparse file, mapped a GiB at a time: a mapping for each client would soon meet the kernel's limit of 65,530, and a
file for each one that of open files. It is written by `pwritev`: through the mapping a full disk would be SIGBUS.

On the disk the kernel writes pages out and evicts them. In memory they are shared with forks: what the parent writes
is not copied for them first, as it is in memory of its own.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from federation.records import Tree
from sim.errors import ClientStoreError

ALIGNMENT = 64
"""Bytes; a cache line, and enough for any dtype."""
_GAP = memoryview(bytes(ALIGNMENT))


Layout = dict[str, Any]
"""A tree with [dtype, shape, offset] for tensors, as JSON can hold it."""


class Packing:
    """Gives every tensor of a tree a place, one that the tree holds twice but one."""

    def __init__(self, tree: Tree) -> None:
        self.parts: list[tuple[int, Tensor]] = []
        self.size = 0  # bytes
        self._places: dict[tuple[Any, ...], int] = {}
        self.layout: Layout = self._place(tree)

    def _place(self, value: Any) -> Any:
        # no recursive closure: it would refer to itself, and tensors would wait for the garbage collector
        if isinstance(value, dict):
            return {name: self._place(below) for name, below in value.items()}
        if not isinstance(value, Tensor):
            raise TypeError(f"a tree holds tensors and dicts of them, not {type(value).__name__}")
        key = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if key not in self._places:
            self._places[key] = self.size
            self.parts.append((self.size, value))
            self.size += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        return [str(value.dtype).removeprefix("torch."), list(value.shape), self._places[key]]

    def buffers(self) -> Iterator[memoryview]:
        """Yield the block's bytes in order, for a gathering write: the tensors' own memory, and what fills the gaps."""
        for offset, value in self.parts:
            # in order of its elements, without a copy where they lie so on the CPU
            yield value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            yield _GAP[: -(offset + value.nbytes) % ALIGNMENT]


def read(place: Any, memory: Tensor) -> Any:
    """Return a layout's tree as views of `memory`, or what lies at one of its places."""
    if isinstance(place, dict):
        return {name: read(below, memory) for name, below in place.items()}
    name, shape, offset = place
    dtype: torch.dtype = getattr(torch, name)
    return memory[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


SEGMENT = 1 << 30
"""Bytes that are mapped at a time; address space, not memory. A larger tree gets a larger segment."""
PAGE = mmap.PAGESIZE
AT_ONCE = 1024
"""Buffers that the kernel gathers in one call: IOV_MAX."""


class Slot:
    """A stretch of the file, which is free again once neither this nor a tensor over it is referred to."""

    __slots__ = ("_address", "_arena", "_size", "position")

    def __init__(self, arena: MmapArena, position: int, address: int, size: int) -> None:
        self.position, self._address, self._size, self._arena = position, address, size, arena

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # numpy's array has this object as its base, and torch's tensor the array: so views keep the slot
        return {"version": 3, "typestr": "|u1", "shape": (self._size,), "data": (self._address, False)}

    @property
    def memory(self) -> Tensor:
        """Its bytes: uint8 (size,)."""
        return torch.from_numpy(np.asarray(self))

    def __del__(self) -> None:
        self._arena.free(self.position, self._address, self._size)


class MmapArena:
    """A file in `folder`, or in memory where there is none, that vanishes with its last user, however that ends.

    Raises:
        ClientStoreError: if the folder cannot hold such a file.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._file = os.memfd_create("gaitway-clients") if folder is None else _unlinked(folder)
        weakref.finalize(self, os.close, self._file)
        self._mapped: list[np.ndarray] = [np.empty(0, np.uint8)]  # segments, one after the other
        self._begin = self._end = 0  # of the last segment, and of what is laid
        self._free: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    @property
    def bytes_taken(self) -> int:
        """Bytes of the disk."""
        return os.fstat(self._file).st_blocks * 512

    def write_tree(self, tree: Tree) -> tuple[Slot, Layout]:
        """Write a tree into a free slot; `read(layout, slot.memory)` are its tensors.

        Raises:
            ClientStoreError: if the disk is full.
        """
        packing = Packing(tree)
        slot = self.reserve(packing.size)
        self.store(packing, slot.position)
        return slot, packing.layout

    def reserve(self, size: int) -> Slot:
        """Return a free slot for so many bytes.

        Raises:
            ClientStoreError: if the disk is full.
        """
        size = _in_pages(size)
        if self._free[size]:
            return Slot(self, *self._free[size].pop(), size)
        try:
            if self._end + size > self._begin + len(self._segment):
                self._map(max(SEGMENT, size))
            if self.folder and hasattr(os, "posix_fallocate"):
                # blocks before bytes: some file systems promise what they do not have
                os.posix_fallocate(self._file, self._end, size)
        except OSError as error:
            raise ClientStoreError(self._full(size, error)) from error
        slot = Slot(self, self._end, self._segment.ctypes.data + self._end - self._begin, size)
        self._end += size
        return slot

    def store(self, packing: Packing, position: int) -> None:
        """Write a tree's bytes to a slot's position: in this process, or in a fork of the one that reserved it.

        Raises:
            ClientStoreError: if the disk or the memory is full.
        """
        try:
            _write(self._file, packing.buffers(), position)
        except OSError as error:
            raise ClientStoreError(self._full(_in_pages(packing.size), error)) from error

    def free(self, position: int, address: int, size: int) -> None:
        """Give a slot's place to the next tree of its size; the file is not shortened."""
        self._free[size].append((position, address))

    def _map(self, length: int) -> None:
        start = self._begin + len(self._segment)
        os.ftruncate(self._file, start + length)  # sparse: takes nothing yet
        self._mapped.append(np.frombuffer(mmap.mmap(self._file, length, offset=start), np.uint8))
        self._begin = self._end = start

    @property
    def _segment(self) -> np.ndarray:
        return self._mapped[-1]

    def _full(self, size: int, error: OSError) -> str:
        todo = "give another folder with --client-store-dir" if self.folder else "train fewer clients per round"
        return (
            f"{self.folder or 'memory'}: no room for {size:,} more bytes beside the {self.bytes_taken:,} of the "
            f"clients' models that are laid there ({error.strerror}); free some, or {todo}"
        )


def _in_pages(size: int) -> int:
    return max(1, -(-size // PAGE)) * PAGE


def _unlinked(folder: Path) -> int:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise ClientStoreError(f"{folder}: the clients' models can't be stored there ({error.strerror})") from error


def _write(file: int, parts: Iterable[memoryview], position: int) -> None:
    waiting = deque(parts)
    while waiting:
        done = os.pwritev(file, list(islice(waiting, AT_ONCE)), position)  # it may take less: 2 GB at most
        position += done
        while waiting and len(waiting[0]) <= done:
            done -= len(waiting.popleft())
        if done:
            waiting[0] = waiting[0][done:]
