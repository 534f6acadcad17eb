"""A graph that comes from elsewhere, such as the server's export: used for other weights, or exported anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from export import onnx_export
from export.graph import ExportModule, ready_graph
from export.onnx_export import export_onnx, export_variants
from export.runtime import Session
from tests.export.conftest import metadata, waves
from tests.export.test_onnx_export import Linear


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> onnx_export.ExportedNetwork:
    """An export of a network, which another one differs from in its weights."""
    module, (x, _) = Linear(), waves(256, 3)
    path = tmp_path_factory.mktemp("first") / "first.onnx"
    export_onnx(module, path, metadata=metadata("linear"), examples=x)
    return onnx_export.ExportedNetwork(path, module)


@pytest.fixture
def exported(first: onnx_export.ExportedNetwork, tmp_path: Path) -> onnx_export.ExportedNetwork:
    """A copy of the file, which a test may change."""
    shutil.copy(first.path, tmp_path / "first.onnx")
    return onnx_export.ExportedNetwork(tmp_path / "first.onnx", first.module)


def rewritten(path: Path, change: Callable[[onnx.ModelProto], object]) -> None:
    graph = onnx.load_model(path)
    change(graph)
    path.write_bytes(graph.SerializeToString())


def one_weight(graph: onnx.ModelProto) -> None:
    (bias,) = (each for each in graph.graph.initializer if each.name == "module.project.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 1, bias.name))


def another_function(graph: onnx.ModelProto) -> None:
    """The weights are right, and the graph computes something else: only the parity gate sees it."""
    next(node for node in graph.graph.node if node.op_type == "Div").op_type = "Mul"


def elsewhere(graph: onnx.ModelProto) -> None:
    weight = graph.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="/etc/hostname")


def foreign(graph: onnx.ModelProto) -> None:
    graph.graph.node[0].domain = "com.example"
    graph.opset_import.add(domain="com.example", version=1)


@pytest.mark.ci
@pytest.mark.parametrize(
    "change",
    [
        None,
        one_weight,
        pytest.param(another_function, marks=pytest.mark.ci),
        pytest.param(foreign, marks=pytest.mark.ci),
    ],
)
def test_a_graph_from_elsewhere_is_used_only_where_it_is_the_networks(
    change: Callable[[onnx.ModelProto], object] | None,
    exported: onnx_export.ExportedNetwork,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, _ = waves(256, 3)
    if change:
        rewritten(exported.path, change)
    made: list[object] = []
    genuine = onnx_export.float32_graph
    monkeypatch.setattr(onnx_export, "float32_graph", lambda *given: made.append(given) or genuine(*given))
    variants = {tmp_path / f"{number}.onnx": Linear() for number in range(2)}
    for module in variants.values():
        module.project.bias = exported.module.project.bias if change is one_weight else module.project.bias
    export_variants(variants, metadata=dict.fromkeys(variants, metadata("linear")), examples=x, exported=exported)
    assert len(made) == (1 if change else 0)
    for path, module in variants.items():
        wanted = ExportModule(module, metadata("linear")).logits(x)
        np.testing.assert_allclose(Session.load(path).predict(x).logits, wanted, atol=1e-4)


def test_a_graph_whose_weights_lie_in_another_file_is_none(exported: onnx_export.ExportedNetwork) -> None:
    assert ready_graph(exported.path) is not None
    rewritten(exported.path, elsewhere)
    assert ready_graph(exported.path) is None


@pytest.mark.parametrize("content", [b"", b"no graph", b"\x08\x08" * 500])
def test_what_is_no_graph_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(content)
    assert ready_graph(tmp_path / "g.onnx") is None
    assert ready_graph(tmp_path / "none.onnx") is None
