"""Trees of tensors as one block of bytes: how shared memory carries them, without pickle and with one copy."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from federation.records import Tree

ALIGNMENT = 64
"""Bytes; a cache line, and enough for any dtype."""


class Packing(NamedTuple):
    """Where each tensor goes: `layout` is the tree with [dtype, shape, offset] for tensors, as JSON can hold it."""

    layout: dict[str, Any]
    parts: list[tuple[int, Tensor]]
    size: int  # bytes


def lay_out(tree: Tree) -> Packing:
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


@torch.no_grad()
def write(packing: Packing, memory: Tensor) -> None:
    """Copy the tensors into `memory`, uint8 (n,) with n ≥ `packing.size`."""
    for offset, value in packing.parts:
        _view(memory, value.dtype, list(value.shape), offset).copy_(value)


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
