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
    places: dict[tuple[Any, ...], int] = {}
    parts: list[tuple[int, Tensor]] = []
    size = 0

    def place(value: Any) -> Any:
        nonlocal size
        if isinstance(value, dict):
            return {name: place(below) for name, below in value.items()}
        if not isinstance(value, Tensor):
            raise TypeError(f"a tree holds tensors and dicts of them, not {type(value).__name__}")
        key = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if key not in places:
            places[key] = size
            parts.append((size, value))
            size += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        return [str(value.dtype).removeprefix("torch."), list(value.shape), places[key]]

    layout = {name: place(below) for name, below in tree.items()}
    return Packing(layout, parts, size)


@torch.no_grad()
def write(packing: Packing, memory: Tensor) -> None:
    """Copy the tensors into `memory`, uint8 (n,) with n ≥ `packing.size`."""
    for offset, value in packing.parts:
        _view(memory, value.dtype, list(value.shape), offset).copy_(value)


def read(layout: dict[str, Any], memory: Tensor) -> Tree:
    """Return the tree as views of `memory`."""

    def found(place: Any) -> Any:
        if isinstance(place, dict):
            return {name: found(below) for name, below in place.items()}
        dtype, shape, offset = place
        return _view(memory, getattr(torch, dtype), shape, offset)

    return {name: found(below) for name, below in layout.items()}


def _view(memory: Tensor, dtype: torch.dtype, shape: list[int], offset: int) -> Tensor:
    count = torch.Size(shape).numel()
    return memory[offset : offset + count * dtype.itemsize].view(dtype).view(shape)
