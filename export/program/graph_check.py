"""What a graph from outside may be, read off its bytes before ONNX Runtime sees it; without onnx and without torch.

A graph of ours is a list of known operators of ONNX's own with plain attributes and constants within the file. Anything
else that the format knows (graphs within graphs, functions, other domains, external files, sparse or text tensors,
training) is refused by not being listed here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from export.program.errors import ProgramError
from export.program.manifest import IR_VERSION, OPERATORS, OPSET

MAX_NODES = 100_000
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# The fields of ONNX's messages (onnx.proto) that graphs of ours have.
MODEL = {"ir_version": 1, "producer_name": 2, "graph": 7, "opset_import": 8}
OPSET_ID = {"domain": 1, "version": 2}
GRAPH = {"node": 1, "name": 2, "initializer": 5, "input": 11, "output": 12}
NODE = {"input": 1, "output": 2, "name": 3, "op_type": 4, "attribute": 5}
ATTRIBUTE = {"name": 1, "f": 2, "i": 3, "s": 4, "ints": 8, "type": 20}
TENSOR = {"dims": 1, "data_type": 2, "float_data": 4, "int32_data": 5, "int64_data": 7, "name": 8, "raw_data": 9}


ITEM_BYTES = {1: 4, 6: 4, 7: 8, 9: 1, 11: 8, 12: 4, 13: 8}
"""Of ONNX's types that a constant may have: float32, int32, int64, bool, float64, uint32, uint64."""


class GraphSummary(NamedTuple):
    """What a graph has."""

    nodes: int
    operators: frozenset[str]


def check_graph(data: bytes) -> GraphSummary:
    """Accept a graph of allowed operators.

    Raises:
        ProgramError: saying what else it holds.
    """
    graphs, operators, nodes = 0, set(), 0
    for field, value in _fields("model", memoryview(data), MODEL):
        if field == "ir_version" and value != IR_VERSION:
            raise ProgramError(f"a graph of IR version {value}; expected {IR_VERSION}")
        if (
            field == "opset_import"
            and (opset := dict(_fields("opset", _message(value), OPSET_ID))).get("version") != OPSET
        ):
            raise ProgramError(f"a graph of opset {opset.get('version')}; expected {OPSET}")
        if field == "opset_import" and len(_message(opset.get("domain", memoryview(b"")))):
            raise ProgramError("a graph of another domain's operators; expected ONNX's own")
        if field != "graph":
            continue
        graphs += 1
        for part, inner in _fields("graph", _message(value), GRAPH):
            if part == "initializer":
                _check_constant(_message(inner))
            if part == "node":
                nodes += 1
                operators.add(_operator(_message(inner)))
    if graphs != 1 or not 0 < nodes <= MAX_NODES:
        raise ProgramError(f"{graphs} graphs with {nodes} nodes; expected one, of at most {MAX_NODES:,} nodes")
    if unknown := sorted(operators - OPERATORS):
        raise ProgramError(f"a graph has the operators {', '.join(unknown)[:200]}, which programs do not have")
    return GraphSummary(nodes, frozenset(operators))


def _check_constant(tensor: memoryview) -> None:
    """Accept a constant whose bytes are as many as its shape says: what it claims is never allocated unseen."""
    size, kind, held = 1, 0, 0
    for field, value in _fields("tensor", tensor, TENSOR):
        if field == "dims":
            for side in [value] if isinstance(value, int) else _packed(value):
                size *= side
        elif field == "data_type" and isinstance(value, int):
            kind = value
        elif field == "raw_data":
            held += len(_message(value))
        elif field != "name":
            raise ProgramError(f"a graph's constant has its numbers in {field}; expected them in raw_data")
    if kind not in ITEM_BYTES or size * ITEM_BYTES[kind] != held:
        raise ProgramError(f"a graph's constant of {size:,} numbers of type {kind} holds {held:,} bytes")


def _packed(data: memoryview) -> Iterator[int]:
    place = 0
    while place < len(data):
        value, place = _varint(data, place)
        yield value


def _operator(node: memoryview) -> str:
    name = ""
    for field, value in _fields("node", node, NODE):
        if field == "op_type":
            name = bytes(_message(value)).decode("ascii", "replace")
        if field == "attribute":
            list(_fields("attribute", _message(value), ATTRIBUTE))
    return name


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ProgramError("a graph's bytes are not ONNX's: a number where a message was expected")
    return value


def _fields(kind: str, data: memoryview, known: dict[str, int]) -> Iterator[tuple[str, int | memoryview]]:
    """Yield the fields of a protobuf message by their names."""
    names = {number: name for name, number in known.items()}
    for number, _, value in fields_of(data, kind, names):
        yield names[number], value


def fields_of(
    data: bytes | memoryview, kind: str = "message", known: Collection[int] | None = None
) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield the number, wire type and value of each field of a protobuf message; none but the known ones.

    Raises:
        ProgramError: if it is no such message, or has others.
    """
    data, place = memoryview(data), 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        if known is not None and number not in known:
            raise ProgramError(f"a graph's {kind} has field {number} of ONNX's format, which programs do not have")
        if wire == VARINT:
            value, place = _varint(data, place)
            yield number, wire, value
            continue
        if wire == BYTES:
            size, place = _varint(data, place)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise ProgramError(f"a graph's {kind} is not ONNX's format: wire type {wire}")
        if place + size > len(data):
            raise ProgramError(f"a graph's {kind} is cut short")
        yield number, wire, data[place : place + size]
        place += size


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ProgramError("a graph's bytes are not ONNX's format: a number that does not end")
