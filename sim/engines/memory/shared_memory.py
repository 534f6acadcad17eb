"""Trees of tensors as one block of bytes: how shared memory carries them, without pickle and with one copy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from federation.records import Tree

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
