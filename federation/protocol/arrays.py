"""Trees of numpy arrays on the wire, and int8 uploads of them, without torch.

The bytes are those of `federation.wire`, and so is what is refused; how numbers become int8 is written here alone, and
`federation.wire.quantization` says by whom it was published. A tree is a flat dict by paths
(`flatten`), which tensors share, on the wire and in programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from federation.errors import UpdateError, WireError
from federation.protocol.messages import Compression, Precision
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

Array = NDArray[Any]
Arrays = dict[str, Array]
"""Arrays by their paths."""

BLOCK = 256
"""Numbers that share a scale: 1.6 % more bytes. Rows of a matrix cost three times that, and err as much."""
LEVELS = 127
"""Symmetric: −128 is not used, so that 0 stays 0."""
TINY = float(np.finfo(np.float32).tiny)
"""The smallest normal number, where a block is all but zero: a scale is never 0, and its inverse never infinite."""


class Quantized(NamedTuple):
    """Arrays that travel, the scales of those among them that are int8, and what is still owed to the server."""

    values: Arrays
    scales: Arrays
    residual: Arrays


class EncodedArrays(NamedTuple):
    """An upload's bytes, and what its client adds to the next one: both are kept together or not at all."""

    data: bytes
    residual: Arrays


def encode(
    flat: Mapping[str, Array],
    *,
    compression: Compression = "none",
    precision: Literal["lossless", "float16"] = "lossless",
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Write arrays; `precision="float16"` narrows float32, but for whole numbers that it would round.

    Raises:
        WireError: if an array has a type that the wire does not carry.
    """
    raw: dict[str, RawTensor] = {}
    for name, value in flat.items():
        if value.dtype.name not in CODES:
            raise refuse_dtype(name, value.dtype)
        value = np.ascontiguousarray(_narrowed(value) if precision == "float16" else value).reshape(value.shape)
        raw[name] = RawTensor(CODES[value.dtype.name], value.shape, value.reshape(-1).view(np.uint8).data)
    return join(raw, compression, metadata or {})


def decode(data: bytes, *, limit_bytes: int, compression: Compression = "none") -> Arrays:
    """Read arrays of at most `limit_bytes` unpacked bytes; float16 comes back as float32.

    Raises:
        WireError: if the bytes are larger than the limit, cut short, or not safetensors.
    """
    raw = unpacked(data, limit_bytes=limit_bytes, compression=compression)
    try:
        flat = safetensors.numpy.load(raw)
    except (*READ_ERRORS, TypeError) as error:
        raise broken(raw, error) from error
    for name, value in flat.items():
        if value.dtype.name not in CODES:
            raise refuse_dtype(name, value.dtype)
    names = names_in_order(raw, flat)
    return {n: flat[n].astype(np.float32) if flat[n].dtype == np.float16 else flat[n].copy() for n in names}


def encode_upload(
    upload: Mapping[str, Array],
    delta_reference: Mapping[str, Array],
    residual: Mapping[str, Array],
    *,
    precision: Precision,
    compression: Compression = "none",
) -> EncodedArrays:
    """Write an upload as `federation.wire.uploads.encode` does; only int8 looks at reference and residual.

    Raises:
        UpdateError: if an array that is to be quantized is not finite.
        WireError: if an array has a type that the wire does not carry.
    """
    if precision != "int8":
        return EncodedArrays(encode(upload, compression=compression, precision=precision), {})
    packed = pack(upload, delta_reference, residual)
    parts = {"values": packed.values, "scales": packed.scales}
    flat = {f"{part}/{name}": value for part, named in parts.items() for name, value in named.items()}
    return EncodedArrays(encode(flat, compression=compression), packed.residual)


def is_quantized(dtype: str, count: int) -> bool:
    """Whether so many numbers travel as int8: float32, and not so few that they hardly count."""
    return dtype == "float32" and count >= BLOCK


def blocks_of(count: int) -> int:
    """Return how many scales so many numbers have."""
    return -(-count // BLOCK)


def pack(upload: Mapping[str, Array], delta_reference: Mapping[str, Array], residual: Mapping[str, Array]) -> Quantized:
    """Quantize an upload; of what is in `delta_reference`, its change from there plus the residual of the round before.

    Raises:
        UpdateError: if an array that is to be quantized, or its change, is not finite.
    """
    packed = Quantized({}, {}, {})
    for name, value in upload.items():
        packed.values[name] = value
        if not is_quantized(value.dtype.name, value.size):
            continue
        start = delta_reference.get(name)
        wanted = value if start is None else _with_residual(value, start, residual.get(name))
        levels, scales = quantize(wanted)
        if not np.isfinite(scales).all():
            raise UpdateError(f"tensor {name!r}, or its change in this round, contains NaN or infinity")
        packed.values[name], packed.scales[name] = levels, scales
        if start is not None:
            packed.residual[name] = wanted - dequantize(levels, scales)
    return packed


def quantize(values: Array) -> tuple[Array, Array]:
    """Round float32 values (…) to int8 of that shape and float32 scales (blocks,).

    Each number errs by at most half its scale, up to float32's own rounding. Of values that are not finite a scale is
    not, and the levels mean nothing.
    """
    blocks = _in_blocks(values)
    largest = np.maximum(blocks.max(1), -blocks.min(1))
    scales = np.maximum(largest / np.float32(LEVELS), np.float32(TINY))
    if not np.isfinite(scales).all():
        return np.zeros(values.shape, np.int8), scales
    levels = np.rint(blocks / scales[:, None]).astype(np.int8)
    return levels.reshape(-1)[: values.size].reshape(values.shape), scales


def dequantize(levels: Array, scales: Array) -> Array:
    """Return q·scale in float32, in the shape of the levels; infinity where a scale is too large for that."""
    with np.errstate(over="ignore"):
        values = _in_blocks(levels).astype(np.float32) * scales[:, None]
    return values.reshape(-1)[: levels.size].reshape(levels.shape)


def read_kept(data: bytes) -> Arrays:
    """Read what this device has written itself.

    Raises:
        WireError: if it is damaged.
    """
    return decode(data, limit_bytes=len(data))


def _with_residual(value: Array, start: Array, residual: Array | None) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # the scale says so
        change: Array = value - start
        # a client state may be older than this tensor
        return change if residual is None or residual.shape != change.shape else change + residual


def _in_blocks(values: Array) -> Array:
    flat = values.reshape(-1)
    return np.pad(flat, (0, -flat.size % BLOCK)).reshape(-1, BLOCK)


def _narrowed(value: Array) -> Array:
    if value.dtype != np.float32 or not value.size:
        return value
    with np.errstate(over="ignore"):
        half = value.astype(np.float16)
    # counts of examples or pixels stay what they are: half has whole numbers up to 2048, and none above 65504
    counts = bool(np.abs(half).max() >= MAX_COUNT) and np.array_equal(value, np.rint(value))
    return value if counts else half


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn a nested dict into a flat one with names joined by '/'; empty dicts vanish."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{_escape(name)}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{path}/"))
        else:
            flat[path] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Invert `flatten`.

    Raises:
        WireError: if a path runs through another tensor.
    """
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = (_unescape(part) for part in path.split("/"))
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise WireError(f"tensor {path!r} lies inside another tensor")
        if last in node:
            raise WireError(f"tensor {path!r} is also the name of a group")
        node[last] = value
    return tree


def _escape(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")


def _unescape(name: str) -> str:
    return name.replace("%2F", "/").replace("%25", "%")
