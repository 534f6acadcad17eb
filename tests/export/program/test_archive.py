"""A program's file from outside: bounded, whole, and of operators that are listed, before ONNX Runtime sees it."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from export.program import archive
from export.program.archive import MANIFEST, check_graph, read_program
from export.program.exporter import export_program
from export.program.manifest import OPERATORS
from export.runtime import ProgramError
from tests.export.program.small_federations import small_federation, small_program


def files_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def packed(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return buffer.getvalue()


def with_graph(change: Callable[[onnx.ModelProto], None]) -> bytes:
    """Return a program whose step was changed, with the digest and the count of nodes that then fit."""
    files = files_of(small_program("fedavg")[1])
    model = onnx.load_from_string(files["step.onnx"])
    change(model)
    files["step.onnx"] = model.SerializeToString()
    manifest = json.loads(files[MANIFEST])
    manifest["graphs"]["step"] |= {
        "sha256": hashlib.sha256(files["step.onnx"]).hexdigest(),
        "nodes": len(model.graph.node),
    }
    return packed(files | {MANIFEST: json.dumps(manifest).encode()})


def add_node(operator: str, **options: object) -> Callable[[onnx.ModelProto], None]:
    return lambda model: model.graph.node.append(helper.make_node(operator, [], ["extra"], **options))


def external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer.add(name="outside", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def body(model: onnx.ModelProto) -> None:
    graph = helper.make_graph([], "body", [], [])
    model.graph.node.append(helper.make_node("Identity", ["batch/x"], ["extra"], body=graph))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add_node("If"), "operators If"),
        (add_node("Loop"), "operators Loop"),
        (add_node("RandomNormal", shape=[1 << 40]), "RandomNormal"),
        (add_node("Add", domain="com.microsoft"), "field 7"),
        (external, "field 1[34]"),
        (lambda model: model.graph.initializer.add(name="c", data_type=1, dims=[1 << 40]), "has 0 bytes"),
        (lambda model: model.graph.initializer.add(name="c", data_type=1, dims=[1], float_data=[1.0]), "float_data"),
        (body, "field 6"),
        (lambda model: model.functions.add(name="f"), "field 25"),
        (lambda model: model.opset_import.add(domain="ai.onnx.ml", version=18), "domain"),
        (lambda model: setattr(model.opset_import[0], "version", 21), "opset 21"),
        (lambda model: setattr(model, "ir_version", 99), "IR version"),
        (lambda model: model.graph.sparse_initializer.add(), "field 15"),
        (lambda model: model.metadata_props.add(key="a", value="b"), "field 14"),
    ],
)
def test_a_graph_with_anything_else_is_refused_before_it_is_loaded(
    change: Callable[[onnx.ModelProto], None], message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        read_program(with_graph(change))


@pytest.mark.parametrize(
    ("graph", "message"), [("step", "step of the program has"), ("", "a batch of the program has")]
)
def test_more_numbers_than_a_device_has_room_for_are_refused_before_any_is_made(graph: str, message: str) -> None:
    files = files_of(small_program("fedavg")[1])
    manifest = json.loads(files[MANIFEST])
    if graph:
        manifest["graphs"][graph]["inputs"]["more"] = {"dtype": "float32", "shape": [1 << 20, 1 << 20]}
    else:
        manifest["x"]["shape"] = [1, 1 << 20]
        manifest["evaluation_batch"] = 65_536
    with pytest.raises(ProgramError, match=message):
        read_program(packed(files | {MANIFEST: json.dumps(manifest).encode()}))


def test_files_that_are_missing_or_more_or_damaged_are_refused() -> None:
    data = small_program("fedavg")[1]
    files = files_of(data)
    manifest = json.loads(files[MANIFEST])
    for changed, message in (
        ({name: value for name, value in files.items() if name != "step.onnx"}, "names"),
        ({**files, "../../step.onnx": b""}, "the files"),
        ({**files, "step.onnx": files["step.onnx"][:-1]}, "damaged"),
        ({name: value for name, value in files.items() if name != MANIFEST}, "expected manifest.json"),
        ({**files, **{f"{i}.onnx": b"" for i in range(40)}}, "an archive of"),
        ({**files, MANIFEST: b"{}"}, "Field required"),
        ({**files, MANIFEST: json.dumps(manifest | {"format": "gaitway.program/2"}).encode()}, "format"),
        ({**files, MANIFEST: json.dumps(manifest | {"more": 1}).encode()}, "more"),
        ({**files, MANIFEST: json.dumps(manifest | {"graphs": {}}).encode()}, "graphs"),
    ):
        with pytest.raises(ProgramError, match=message):
            read_program(packed(changed))
    assert read_program(packed(files)).manifest == read_program(data).manifest


def test_damage_within_compressed_bytes_and_other_compressions_are_refused_in_words() -> None:
    data = bytearray(small_program("fedavg")[1])
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        first = file.infolist()[0]
    data[first.header_offset + 30 + len(first.filename)] = 0xFF  # a block of a type that deflate does not have
    with pytest.raises(ProgramError, match="aren't a program's archive"):
        read_program(bytes(data))
    for compression in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        with pytest.raises(ProgramError, match="another method than deflate"):
            read_program(packed(files_of(small_program("fedavg")[1]), compression))


def test_a_file_that_unpacks_to_more_than_it_may_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 1 << 20)
    with pytest.raises(ProgramError, match="unpacks to more"):
        read_program(packed({**files_of(small_program("fedavg")[1]), "step.onnx": bytes(1 << 20)}))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(ProgramError):
        read_program(data)
    with pytest.raises(ProgramError):
        check_graph(data)


@given(st.data())
def test_a_changed_graph_is_read_or_refused_in_words(data: st.DataObject) -> None:
    graph = bytearray(files_of(small_program("fedavg")[1])["evaluate.onnx"])
    graph[data.draw(st.integers(0, len(graph) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(ProgramError):
        assert check_graph(bytes(graph)).operators <= OPERATORS


def test_the_reader_finds_what_onnx_finds() -> None:
    for name, data in files_of(small_program("fedali")[1]).items():
        if name != MANIFEST:
            model = onnx.load_from_string(data)
            onnx.checker.check_model(model)
            found = check_graph(data)
            assert found.nodes == len(model.graph.node)
            assert found.operators == {node.op_type for node in model.graph.node} <= OPERATORS


def test_the_same_plan_gives_the_same_bytes() -> None:
    """A program is found by its digest, by every server that makes it of one plan."""
    assert export_program(small_federation("fedavg")) == export_program(small_federation("fedavg"))
