"""Encodes a tree of tensors as a safetensors file, optionally inside one zstd frame, without torch.

`federation.wire` reads and writes torch's tensors by it, `federation.protocol.arrays` numpy's arrays: the same bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import zstandard
from safetensors import SafetensorError

from federation.errors import WireError
from federation.protocol.messages import Compression

CODES = {
    "bool": "BOOL",
    "int8": "I8",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
}
"""Types of tensors and what a header calls them, in the order in which safetensors writes them, the last one first, so
that each lies at a multiple of its size."""
_RANK = {code: rank for rank, code in enumerate(CODES.values())}
READ_ERRORS = (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError)
"""What the library raises of bytes that are no safetensors file."""
HEADER_BYTES = 1 << 20
"""Room for a safetensors header beside the tensors."""
MAX_COUNT = 2048
"""Whole numbers up to which float16 has them all."""


class RawTensor(NamedTuple):
    """A tensor as it lies in memory."""

    code: str
    shape: tuple[int, ...]
    data: bytes | memoryview


def join(
    tensors: Mapping[str, RawTensor], compression: Compression = "none", metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return a safetensors file: the header in the tree's order, then the tensors' bytes as they lie in memory.

    The tensors lie where `safetensors.torch.save` would put them. The library copies each twice into new memory, which
    is what an encoding costs; joined, it is once.
    """
    order = sorted(tensors, key=lambda name: (-_RANK[tensors[name].code], name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    header |= dict.fromkeys(tensors)
    end = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + memoryview(tensor.data).nbytes
        header[name] = {"dtype": tensor.code, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join((struct.pack("<Q", len(text)), text, *(tensors[name].data for name in order)))
    return zstandard.ZstdCompressor(level=3).compress(data) if compression == "zstd" else data


def unpacked(data: bytes, *, limit_bytes: int, compression: Compression = "none") -> bytes:
    """Return a file's bytes, at most `limit_bytes` of them.

    Raises:
        WireError: if there are more, or they are not the frame that they should be.
    """
    raw = _inflated(data, limit_bytes) if compression == "zstd" else data
    if len(raw) > limit_bytes:
        raise WireError(f"got {len(raw):,} bytes; expected at most {limit_bytes:,}")
    return raw


def broken(raw: bytes, error: Exception) -> WireError:
    """Say that bytes are no safetensors file."""
    return WireError(f"got {len(raw):,} bytes that aren't valid safetensors: {error}")


def names_in_order(raw: bytes, names: Iterable[str]) -> list[str]:
    """Return names in the order of the header, which is the tree's: sums round by it as where they were written."""
    known = set(names)
    return [name for name in _header(raw) if name in known]


def metadata_in(raw: bytes) -> dict[str, str]:
    """Return what a whole safetensors file says of itself besides its tensors."""
    return dict(_header(raw).get("__metadata__", {}))


def _header(raw: bytes) -> dict[str, Any]:
    size = struct.unpack_from("<Q", raw)[0]
    found: dict[str, Any] = json.loads(raw[8 : 8 + size])
    return found


def refuse_dtype(name: str, dtype: object) -> WireError:
    """Say that a tensor's type does not travel."""
    return WireError(f"tensor {name!r} has dtype {dtype}, which the wire format doesn't support")


def _inflated(data: bytes, limit_bytes: int) -> bytes:
    try:
        # a frame may lie about its size or omit it: stop at the limit, whatever it says
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data)
        return reader.read(limit_bytes + 1)
    except zstandard.ZstdError as error:
        raise WireError(f"got {len(data):,} bytes that aren't a zstd frame: {error}") from error
