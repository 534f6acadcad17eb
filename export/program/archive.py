"""A program's file: a ZIP archive of `manifest.json` and an ONNX file for each graph; needs no torch.

The same plan and versions give the same bytes, so the file can be named by its digest. Sizes are checked before
unpacking. Graphs are validated from their bytes before ONNX Runtime loads them: our graphs consist of known standard
operators with plain attributes and constants within the file. Anything else in the format (nested graphs, functions,
other domains, external files, sparse or text tensors, training) is rejected because it isn't listed here.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from pydantic import ValidationError

from export.program.manifest import IR_VERSION, OPERATORS, OPSET, Manifest
from export.runtime import ProgramError
from gaitway.errors import first_problem

MANIFEST = "manifest.json"
MAX_FILE_BYTES = 128 << 20
MAX_MANIFEST_BYTES = 16 << 20
MAX_UNPACKED_BYTES = 256 << 20
MAX_FILES = 32
MAX_VALUE_BYTES = 1 << 30
"""Of a graph's inputs and outputs together: ten times what the largest network of ours has."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ProgramFile(NamedTuple):
    """A program that was checked: its manifest, and its graphs' bytes by name."""

    manifest: Manifest
    graphs: Mapping[str, bytes]


def write_program(manifest: Manifest, graphs: Mapping[str, bytes]) -> bytes:
    """Return the archive of a manifest and the graphs whose files it names."""
    text = manifest.model_dump_json(exclude_defaults=False).encode()
    files = {MANIFEST: text} | {entry.file: graphs[name] for name, entry in manifest.graphs.items() if entry.file}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def read_program(data: bytes) -> ProgramFile:
    """Read and check an archive.

    Raises:
        ProgramError: if it is too large, not an archive, or holds anything but what a program has.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ProgramError(f"a program of {len(data):,} bytes; expected at most {MAX_FILE_BYTES:,}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = _unpacked(archive)
        manifest = Manifest.model_validate_json(files.pop(MANIFEST))
    except ValidationError as error:
        raise ProgramError(f"the program's {MANIFEST} is not one: {first_problem(error)}") from None
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError, ValueError) as error:  # of encryption, too
        raise ProgramError(f"{len(data):,} bytes that aren't a program's archive: {error}") from None
    _check_sizes(manifest)
    named = {entry.file: (name, entry) for name, entry in manifest.graphs.items() if entry.file}
    if set(named) != set(files):
        raise ProgramError(f"the archive has the files {sorted(files)}; its manifest names {sorted(named)}")
    graphs = {}
    for file, (name, entry) in named.items():
        if hashlib.sha256(files[file]).hexdigest() != entry.sha256:
            raise ProgramError(f"the graph {name} is damaged: its sha256 is not the manifest's")
        if check_graph(files[file]).nodes != entry.nodes:
            raise ProgramError(f"the graph {name} has other nodes than the manifest says")
        graphs[name] = files[file]
    return ProgramFile(manifest, graphs)


def _check_sizes(manifest: Manifest) -> None:
    """Refuse what declares more numbers than a device has room for, before any of them is made."""
    sizes = {name: sum(kind.nbytes for kind in (*entry.inputs.values(), *entry.outputs.values()))
             for name, entry in manifest.graphs.items()}  # fmt: skip
    rows = max(manifest.statistics_batch, manifest.evaluation_batch)
    sizes["a batch"] = rows * manifest.x.nbytes // max(1, manifest.x.shape[0] if manifest.x.shape else 1)
    sizes["the client"] = sum(kind.nbytes for kind in manifest.client.values())
    sizes["the optimizer"] = max(
        (sum(k.nbytes for k in phase.momenta.values()) for phase in manifest.phases), default=0
    )
    for what, size in sizes.items():
        if size > MAX_VALUE_BYTES:
            raise ProgramError(
                f"{what} of the program has {size:,} bytes of numbers; expected at most {MAX_VALUE_BYTES:,}"
            )


def _unpacked(archive: zipfile.ZipFile) -> dict[str, bytes]:
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if len(infos) > MAX_FILES or len(set(names)) < len(names) or MANIFEST not in names:
        raise ProgramError(f"an archive of {len(infos)} files; expected {MANIFEST} and at most {MAX_FILES - 1} graphs")
    if archive.getinfo(MANIFEST).file_size > MAX_MANIFEST_BYTES:
        raise ProgramError(f"the program's {MANIFEST} has more than {MAX_MANIFEST_BYTES:,} bytes")
    if any(info.compress_type not in _COMPRESSIONS for info in infos):
        raise ProgramError("a file of the program is compressed by another method than deflate")
    # a reader stops at the size that was declared
    if sum(info.file_size for info in infos) > MAX_UNPACKED_BYTES:
        raise ProgramError(f"the program unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
    return {info.filename: archive.read(info) for info in infos}


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
        raise ProgramError(f"a graph's constant of {size:,} numbers of type {kind} has {held:,} bytes")


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
