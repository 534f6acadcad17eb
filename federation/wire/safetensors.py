"""Trees of tensors as bytes: safetensors, optionally in float16 and inside one zstd frame; never pickle.

Bytes from outside are read in this order: bounded in size, unpacked within that bound, header parsed, and only then
tensors built. What they may contain is for `federation.wire.schema` to say.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from typing import Any, Literal

import safetensors.torch
import torch
import zstandard
from safetensors import SafetensorError
from torch import Tensor

from federation.errors import WireError
from federation.protocol.messages import Compression
from federation.records import Tensors, Tree
from federation.tree import flatten, map_tree, unflatten

# In the order in which safetensors writes them, the last one first, so that each lies at a multiple of its size.
_NAMES = {
    torch.bool: "BOOL",
    torch.int8: "I8",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
_RANK = {dtype: rank for rank, dtype in enumerate(_NAMES)}
DTYPES = frozenset(_NAMES)


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
    data = b"".join(_safetensors(flatten(tree)))
    return zstandard.ZstdCompressor(level=3).compress(data) if compression == "zstd" else data


def decode(data: bytes, *, limit_bytes: int, compression: Compression = "none") -> Tree:
    """Read a tree of at most `limit_bytes` unpacked bytes; float16 comes back as float32.

    The tensors are copies: whoever writes into one changes nothing that a digest was taken of.

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
        _refuse_dtype(name, value)
    # the header names the tensors in the tree's order, in which sums over them round as where they were written
    names = [name for name in _header(raw) if name in flat]
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
    counts = bool(half.abs().amax() >= 2048) and torch.equal(value, value.round())
    return value if counts else half


def _refuse_dtype(name: str, value: Tensor) -> None:
    if value.dtype not in DTYPES:
        raise WireError(f"tensor {name!r} has dtype {value.dtype}, which the wire does not carry")


def _unpack(data: bytes, limit_bytes: int) -> bytes:
    try:
        # a frame may lie about its size or omit it: stop at the limit, whatever it says
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data)
        return reader.read(limit_bytes + 1)
    except zstandard.ZstdError as error:
        raise WireError(f"{len(data):,} bytes came that are not a zstd frame: {error}") from error


def _header(raw: bytes) -> list[str]:
    size = struct.unpack_from("<Q", raw)[0]
    return list(json.loads(raw[8 : 8 + size]))


def _safetensors(flat: Tensors) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file: the header in the tree's order, then the tensors' bytes as they lie in memory.

    The tensors lie where `safetensors.torch.save` would put them. The library copies each twice into new memory, which
    is what an encoding costs; joined, it is once.
    """
    for name, value in flat.items():
        _refuse_dtype(name, value)
    order = sorted(flat, key=lambda name: (-_RANK[flat[name].dtype], name))
    header: dict[str, Any] = dict.fromkeys(flat)
    end = 0
    for name in order:
        begin, end = end, end + flat[name].nbytes
        shape = list(flat[name].shape)
        header[name] = {"dtype": _NAMES[flat[name].dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for name in order:
        yield flat[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
