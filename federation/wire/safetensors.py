"""Trees of tensors as bytes: safetensors, optionally in float16 and inside one zstd frame; never pickle.

Bytes from outside are read in this order: bounded in size, unpacked within that bound, header parsed, and only then
tensors built. What they may contain is for `federation.wire.schema` to say.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import safetensors.torch
import torch
from torch import Tensor

from federation.protocol.messages import Compression
from federation.protocol.wire_format import (
    CODES,
    MAX_COUNT,
    READ_ERRORS,
    RawTensor,
    broken,
    join,
    names_in_order,
    refuse_dtype,
    unpacked,
)
from federation.records import Tree
from federation.records.tree import flatten, map_tree, unflatten

_CODES: dict[torch.dtype, str] = {getattr(torch, name): code for name, code in CODES.items()}
DTYPES = frozenset(_CODES)


def encode(
    tree: Tree, *, compression: Compression = "none", precision: Literal["lossless", "float16"] = "lossless"
) -> bytes:
    """Write a tree; `precision="float16"` narrows float32, but for whole numbers that it would round.

    int8 is for uploads alone: `federation.wire.uploads`.

    Raises:
        WireError: if a tensor has a dtype that the wire does not carry.
    """
    if precision == "float16":
        tree = map_tree(_narrowed, tree)
    return join({name: _raw(name, value) for name, value in flatten(tree).items()}, compression)


def decode(data: bytes, *, limit_bytes: int, compression: Compression = "none") -> Tree:
    """Read a tree of at most `limit_bytes` unpacked bytes; float16 comes back as float32.

    The tensors are copies: whoever writes into one changes nothing that a digest was taken of.

    Raises:
        WireError: if the bytes are larger than the limit, cut short, or not safetensors.
    """
    raw = unpacked(data, limit_bytes=limit_bytes, compression=compression)
    try:
        flat = safetensors.torch.load(raw)
    except READ_ERRORS as error:
        raise broken(raw, error) from error
    for name, value in flat.items():
        if value.dtype not in DTYPES:
            raise refuse_dtype(name, value.dtype)
    names = names_in_order(raw, flat)
    return unflatten({n: flat[n].float() if flat[n].dtype == torch.float16 else flat[n] for n in names})


def digest(data: bytes) -> str:
    """Return the lower-case hexadecimal sha256, the name of a blob."""
    return hashlib.sha256(data).hexdigest()


def tensor_bytes(tree: Tree) -> int:
    """Return bytes of the tensors alone, as they are."""
    return sum(value.nbytes for value in flatten(tree).values())


def _narrowed(value: Tensor) -> Tensor:
    if value.dtype != torch.float32 or not value.numel():
        return value
    half = value.half()
    # counts of examples or pixels stay what they are: half has whole numbers up to 2048, and none above 65504
    counts = bool(half.abs().amax() >= MAX_COUNT) and torch.equal(value, value.round())
    return value if counts else half


def _raw(name: str, value: Tensor) -> RawTensor:
    if value.dtype not in DTYPES:
        raise refuse_dtype(name, value.dtype)
    data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return RawTensor(_CODES[value.dtype], tuple(value.shape), data)
