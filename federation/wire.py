"""Trees of tensors as bytes: safetensors, optionally in float16 and inside one zstd frame; never pickle.

Bytes from outside are read in this order: bounded in size, unpacked within that bound, header parsed, and only then
tensors built. What they may contain is for `federation.schema` to say.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import safetensors.torch
import torch
import zstandard
from safetensors import SafetensorError

from federation.errors import WireError
from federation.records import Tensors, Tree
from federation.tree import flatten, map_tree, unflatten

Compression = Literal["none", "zstd"]
Precision = Literal["lossless", "float16"]

DTYPES = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool})


def encode(tree: Tree, *, compression: Compression = "none", precision: Precision = "lossless") -> bytes:
    """Write a tree; `precision="float16"` narrows float32 and is the only lossy choice."""
    if precision == "float16":
        tree = map_tree(lambda v: v.half() if v.dtype == torch.float32 else v, tree)
    flat = {name: value.detach().cpu().contiguous() for name, value in flatten(tree).items()}
    data = safetensors.torch.save(_unshared(flat))
    return zstandard.ZstdCompressor(level=3).compress(data) if compression == "zstd" else data


def decode(data: bytes, *, limit_bytes: int, compression: Compression = "none") -> Tree:
    """Read a tree of at most `limit_bytes` unpacked bytes; float16 comes back as float32.

    Raises:
        WireError: if the bytes are larger than the limit, cut short, or not safetensors.
    """
    raw = _unpack(data, limit_bytes) if compression == "zstd" else data
    if len(raw) > limit_bytes:
        raise WireError(f"{len(raw):,} bytes came, at most {limit_bytes:,} were expected")
    try:
        flat = safetensors.torch.load(raw)
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        raise WireError(f"{len(raw):,} bytes came that are not valid safetensors: {error}") from error
    for name, value in flat.items():
        if value.dtype not in DTYPES:
            raise WireError(f"tensor {name!r} has dtype {value.dtype}, which the wire does not carry")
    return unflatten({n: v.float() if v.dtype == torch.float16 else v for n, v in sorted(flat.items())})


def digest(data: bytes) -> str:
    """Return the lower-case hexadecimal sha256, the name of a blob."""
    return hashlib.sha256(data).hexdigest()


def tensor_bytes(tree: Tree) -> int:
    """Bytes of the tensors alone, as they are."""
    return sum(value.nbytes for value in flatten(tree).values())


def _unpack(data: bytes, limit_bytes: int) -> bytes:
    try:
        # a frame may lie about its size or omit it: stop at the limit, whatever it says
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data)
        return reader.read(limit_bytes + 1)
    except zstandard.ZstdError as error:
        raise WireError(f"{len(data):,} bytes came that are not a zstd frame: {error}") from error


def _unshared(flat: Tensors) -> Tensors:
    """Copy tensors that share memory, which safetensors refuses to write twice."""
    seen: set[int] = set()
    result: Tensors = {}
    for name, value in flat.items():
        pointer = value.untyped_storage().data_ptr()
        result[name] = value.clone() if pointer in seen else value
        seen.add(pointer)
    return result
