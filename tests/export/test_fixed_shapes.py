"""A graph of fixed shapes for phones' accelerators: the same numbers, and one part by ONNX Runtime's own checker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.tools.mobile_helpers import usability_checker

from export.fixed_shapes import with_accelerated_operators
from export.onnx_export import export_fixed_shapes, export_onnx
from export.runtime import Session
from tests.export.conftest import metadata, trained, waves

CORE_ML = "coreml_supported_mlprogram_ops.md"


def partitions(graph: onnx.ModelProto) -> tuple[int, int]:
    """How many parts NNAPI and Core ML would get, if all operators are theirs; else −1."""
    known = onnx.shape_inference.infer_shapes(graph)
    found = (
        usability_checker.check_nnapi_partitions(known, True),
        usability_checker.check_coreml_partitions(known, True, CORE_ML),
    )
    nnapi, core_ml = (each.num_partitions if each.num_supported_nodes == each.num_nodes else -1 for each in found)
    return nnapi, core_ml


def answered(graph: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    answer: np.ndarray = session.run(None, {"x": x})[0]
    return answer


def test_normalizations_lengths_and_convolutions_of_signals_are_written_by_what_accelerators_have() -> None:
    random = np.random.default_rng(0)
    constants = {
        "kernel": random.normal(size=(4, 3, 3)),
        "bias": random.normal(size=4),
        "scale": random.normal(size=4),
        "shift": random.normal(size=4),
        "gain": random.normal(size=8),
        "offset": random.normal(size=8),
    }
    axes = numpy_helper.from_array(np.array([-1]), "axes")
    shape = numpy_helper.from_array(np.array([1, 4, 8]), "shape")
    nodes = [
        helper.make_node("Conv", ["x", "kernel", "bias"], ["c"], kernel_shape=[3], strides=[2], pads=[1, 1]),
        helper.make_node("InstanceNormalization", ["c", "scale", "shift"], ["i"], epsilon=1e-3),
        helper.make_node("LayerNormalization", ["i", "gain", "offset"], ["l"], axis=-1),
        helper.make_node("ReduceL2", ["l", "axes"], ["r"], keepdims=1),
        helper.make_node("Expand", ["r", "shape"], ["e"]),
        helper.make_node("Div", ["l", "e"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()] + [axes, shape],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    found = with_accelerated_operators(model)
    x = random.normal(size=(1, 3, 16)).astype(np.float32)
    np.testing.assert_allclose(answered(found, x), answered(model, x), atol=1e-5)
    assert partitions(model) == (-1, -1)
    assert partitions(found) == (1, 1)
    assert {node.op_type for node in found.graph.node}.isdisjoint({"InstanceNormalization", "LayerNormalization"})


@pytest.mark.ci
def test_an_export_of_fixed_shapes_passes_the_gate_and_is_one_part(tmp_path: Path) -> None:
    x, y = waves(256, 3)
    module = trained("har_cnn", steps=1)
    report = export_onnx(module, tmp_path / "m.onnx", metadata=metadata("har_cnn"), examples=x, labels=y)
    fixed = export_fixed_shapes(module, tmp_path / "m.onnx", metadata=metadata("har_cnn"), examples=x)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.fixed.onnx", "m.onnx"]
    assert partitions(onnx.load(fixed.path)) == (1, 1)
    one, many = (Session.load(path).predict(x[:9]) for path in (fixed.path, report.float32.path))
    np.testing.assert_allclose(one.logits, many.logits, atol=1e-4)
