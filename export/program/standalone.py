"""A program's network as a file of its own: the graph `model` with a device's numbers laid in, without onnx or torch.

ONNX is protobuf: a graph's inputs become constants of the same names, everything else is copied as its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.program.errors import ProgramError
from export.program.graph_check import fields_of
from export.program.manifest import OUTPUT

MODEL_GRAPH, MODEL_PROPERTIES = 7, 14
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT = 1, 5, 11, 12
NODE_ENDS, INFO_NAME = (1, 2), 1
TENSOR_DIMS, TENSOR_TYPE, TENSOR_NAME, TENSOR_RAW = 1, 2, 8, 9
KEY, VALUE = 1, 2
KINDS = {"float32": 1, "int32": 6, "int64": 7, "bool": 9, "float64": 11}
"""ONNX's numbers of types (TensorProto.DataType)."""
BYTES = 2


def standalone_model(graph: bytes, values: Mapping[str, NDArray[Any]], properties: Mapping[str, str]) -> bytes:
    """Return an ONNX file from examples `x` to `logits` and `embedding`, with `values` as constants in it.

    Raises:
        ProgramError: if the graph asks for an input that is neither `x` nor among the values.
    """
    parts = []
    for number, wire, data in fields_of(graph):
        if number == MODEL_GRAPH and isinstance(data, memoryview):
            parts.append(_field(number, _with_constants(data, values)))
        else:
            parts.append(_copied(number, wire, data))
    for name, text in properties.items():
        entry = _field(KEY, name.encode()) + _field(VALUE, text.encode())
        parts.append(_field(MODEL_PROPERTIES, entry))
    return b"".join(parts)


def _with_constants(graph: memoryview, values: Mapping[str, NDArray[Any]]) -> bytes:
    parts, constants = [], []
    for number, wire, data in fields_of(graph):
        if number == GRAPH_INPUT and isinstance(data, memoryview) and (name := _name(data, INFO_NAME)) != "x":
            if name not in values:
                raise ProgramError(f"the program's model asks for {name!r}, which is not there")
            constants.append(_field(GRAPH_INITIALIZER, _tensor(name, values[name])))
        elif number in (GRAPH_NODE, GRAPH_OUTPUT) and isinstance(data, memoryview):
            parts.append(_field(number, _renamed(data, NODE_ENDS if number == GRAPH_NODE else (INFO_NAME,))))
        else:
            parts.append(_copied(number, wire, data))
    return b"".join([*parts, *constants])


def _renamed(message: memoryview, places: tuple[int, ...]) -> bytes:
    """Call outputs by their names: those of a program's graphs begin with `next/`."""
    prefix = OUTPUT.encode()
    return b"".join(
        _field(number, bytes(data)[len(prefix) :])
        if number in places and isinstance(data, memoryview) and bytes(data).startswith(prefix)
        else _copied(number, wire, data)
        for number, wire, data in fields_of(message)
    )


def _name(message: memoryview, place: int) -> str:
    found: Iterator[str] = (
        bytes(data).decode()
        for number, _, data in fields_of(message)
        if number == place and isinstance(data, memoryview)
    )
    return next(found, "")


def _tensor(name: str, value: NDArray[Any]) -> bytes:
    dims = b"".join(_number(TENSOR_DIMS, side) for side in value.shape)
    raw = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
    return (
        dims
        + _number(TENSOR_TYPE, KINDS[value.dtype.name])
        + _field(TENSOR_NAME, name.encode())
        + _field(TENSOR_RAW, raw)
    )


def _copied(number: int, wire: int, data: int | memoryview) -> bytes:
    if isinstance(data, int):
        return _number(number, data)
    if wire == BYTES:
        return _field(number, data)
    return _varint(number << 3 | wire) + bytes(data)


def _field(number: int, data: bytes | memoryview) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(data)) + bytes(data)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
