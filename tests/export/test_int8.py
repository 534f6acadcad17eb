"""What the int8 file holds: convolutions in a quarter of the bytes and no work for a window, ALP's matching exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from export.int8 import narrowed
from tests.export.conftest import Exported


def _int8(exported: Exported) -> onnx.ModelProto:
    return onnx.load(exported.path.with_suffix(".int8.onnx"))


def test_narrowed_kernels_are_off_by_half_a_scale_at_most() -> None:
    kernel = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32) * np.float32(10.0) ** np.arange(
        -3, 2, dtype=np.float32
    ).reshape(5, 1, 1)
    kernel[2] = 0
    small, scale = narrowed(kernel)
    assert (small.dtype, small.shape, scale.shape) == (np.int8, (5, 3, 4), (5, 1, 1))
    assert (np.abs(small * scale - kernel) <= 0.501 * scale).all()
    assert np.abs(small).max(axis=(1, 2)).tolist() == [127, 127, 0, 127, 127]


def test_every_kernel_is_stored_as_int8_and_none_in_float32(exported: Exported) -> None:
    graph = _int8(exported).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    kernels = [node.input[1] for node in graph.node if node.op_type == "Conv"]
    assert bool(kernels) == exported.name.startswith("cnn")
    for name in kernels:
        assert name not in stored
        assert stored[f"{name}.int8"].dtype == np.int8


def test_kernels_are_widened_when_the_file_is_loaded_not_for_every_window(exported: Exported, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    ort.InferenceSession(_int8(exported).SerializeToString(), options, providers=["CPUExecutionProvider"])
    left = [node.name for node in onnx.load(tmp_path / "loaded.onnx").graph.node]
    assert not [name for name in left if name.endswith((".wide", ".widened"))]
