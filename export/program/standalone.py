"""Writes a network as a separate file with a device's numbers inserted, without onnx or torch.

ONNX is protobuf: of a program's graph `model` inputs become constants of the same names, of an exported file constants
are replaced, and everything else is copied as its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.program.archive import fields_of
from export.program.manifest import OUTPUT
from export.runtime import ProgramError

MODEL_GRAPH, MODEL_PROPERTIES = 7, 14
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT = 1, 5, 11, 12
NODE_ENDS, INFO_NAME = (1, 2), 1
TENSOR_DIMS, TENSOR_TYPE, TENSOR_NAME, TENSOR_RAW = 1, 2, 8, 9
KEY, VALUE = 1, 2
KINDS = {"float32": 1, "int32": 6, "int64": 7, "bool": 9, "float64": 11}
"""ONNX's numbers of types (TensorProto.DataType)."""
TYPES = {number: name for name, number in KINDS.items()}
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
    return b"".join([*parts, *_properties(properties)])


def constants_of(model: bytes) -> dict[str, NDArray[Any]]:
    """Return the constants of an exported file by their names.

    Raises:
        ProgramError: if one of them is not float or int, or lies outside the file.
    """
    found: dict[str, NDArray[Any]] = {}
    for number, _, data in fields_of(model):
        if number == MODEL_GRAPH and isinstance(data, memoryview):
            for place, _, part in fields_of(data):
                if place == GRAPH_INITIALIZER and isinstance(part, memoryview):
                    found[_name(part, TENSOR_NAME)] = _array(part)
    return found


def with_constants(model: bytes, values: Mapping[str, NDArray[Any]], properties: Mapping[str, str]) -> bytes:
    """Return an exported file with other values of some constants, and other properties.

    Raises:
        ProgramError: if it has no constant of a name, type and shape.
    """
    known = constants_of(model)
    for name, value in values.items():
        if name not in known or (known[name].dtype, known[name].shape) != (value.dtype, value.shape):
            raise ProgramError(f"the file has no constant {name!r} of type {value.dtype} and shape {value.shape}")
    parts = []
    for number, wire, data in fields_of(model):
        if number == MODEL_GRAPH and isinstance(data, memoryview):
            parts.append(_field(number, _replaced(data, values)))
        elif number != MODEL_PROPERTIES:
            parts.append(_copied(number, wire, data))
    return b"".join([*parts, *_properties(properties)])


def _properties(properties: Mapping[str, str]) -> Iterator[bytes]:
    for name, text in properties.items():
        yield _field(MODEL_PROPERTIES, _field(KEY, name.encode()) + _field(VALUE, text.encode()))


def _replaced(graph: memoryview, values: Mapping[str, NDArray[Any]]) -> bytes:
    parts = []
    for number, wire, data in fields_of(graph):
        name = _name(data, TENSOR_NAME) if number == GRAPH_INITIALIZER and isinstance(data, memoryview) else ""
        parts.append(_field(number, _tensor(name, values[name])) if name in values else _copied(number, wire, data))
    return b"".join(parts)


def _array(tensor: memoryview) -> NDArray[Any]:
    fields = list(fields_of(tensor))
    numbers = {number: data for number, _, data in fields if number != TENSOR_DIMS}
    kind, raw = TYPES.get(int(str(numbers.get(TENSOR_TYPE)))), numbers.get(TENSOR_RAW, memoryview(b""))
    shape = tuple(data for number, _, data in fields if number == TENSOR_DIMS and isinstance(data, int))
    if kind is None or not isinstance(raw, memoryview) or not {*numbers} <= {TENSOR_TYPE, TENSOR_NAME, TENSOR_RAW}:
        raise ProgramError(f"the constant {_name(tensor, TENSOR_NAME)!r} is none of numbers within the file")
    values = np.frombuffer(raw, np.dtype(kind).newbyteorder("<"))
    if values.size != math.prod(shape):
        raise ProgramError(f"the constant {_name(tensor, TENSOR_NAME)!r} has {values.size} numbers for shape {shape}")
    return values.reshape(shape).astype(kind, copy=False)


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
