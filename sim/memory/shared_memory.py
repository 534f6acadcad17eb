"""Trees of tensors as one block of bytes: how shared memory carries them, without pickle and with one copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from federation.records import Tree

ALIGNMENT = 64
"""Bytes; a cache line, and enough for any dtype."""
_GAP = memoryview(bytes(ALIGNMENT))


class Packing(NamedTuple):
    """Where each tensor goes: `layout` is the tree with [dtype, shape, offset] for tensors, as JSON can hold it."""

    layout: dict[str, Any]
    parts: list[tuple[int, Tensor]]
    size: int  # bytes


def pack(tree: Tree) -> Packing:
    """Give every tensor a place; one that the tree holds twice gets one."""
    plan = _Plan()
    return Packing({name: plan.place(below) for name, below in tree.items()}, plan.parts, plan.size)


class _Plan:
    """What has a place so far."""

    def __init__(self) -> None:
        self.places: dict[tuple[Any, ...], int] = {}
        self.parts: list[tuple[int, Tensor]] = []
        self.size = 0

    def place(self, value: Any) -> Any:
        # no recursive closure: it would refer to itself, and tensors would wait for the garbage collector
        if isinstance(value, dict):
            return {name: self.place(below) for name, below in value.items()}
        if not isinstance(value, Tensor):
            raise TypeError(f"a tree holds tensors and dicts of them, not {type(value).__name__}")
        key = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if key not in self.places:
            self.places[key] = self.size
            self.parts.append((self.size, value))
            self.size += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        return [str(value.dtype).removeprefix("torch."), list(value.shape), self.places[key]]


def buffers(packing: Packing) -> Iterator[memoryview]:
    """Yield the block's bytes in order, for a gathering write: the tensors' own memory, and what fills the gaps."""
    end = 0
    for offset, value in packing.parts:
        yield bytes_of(value)
        end = offset + value.nbytes
        yield _GAP[: -end % ALIGNMENT]


def bytes_of(value: Tensor) -> memoryview:
    """Return a tensor's bytes in order of its elements, without a copy where they lie so on the CPU."""
    data: memoryview = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
    return data


def read(layout: dict[str, Any], memory: Tensor) -> Tree:
    """Return the tree as views of `memory`."""
    return {name: _found(below, memory) for name, below in layout.items()}


def _found(place: Any, memory: Tensor) -> Any:
    if isinstance(place, dict):
        return {name: _found(below, memory) for name, below in place.items()}
    dtype, shape, offset = place
    return _view(memory, getattr(torch, dtype), shape, offset)


def _view(memory: Tensor, dtype: torch.dtype, shape: list[int], offset: int) -> Tensor:
    count = torch.Size(shape).numel()
    return memory[offset : offset + count * dtype.itemsize].view(dtype).view(shape)
