"""ONNX with int8 weights: dense layers computed in int8, convolutions stored in it.

Quantizing a convolution's input as it runs costs these small networks more than the product saves (0.21 ms a window of
the CNN for 0.15 in float32), so a convolution's weights are only kept as int8: ONNX Runtime widens them once, when it
loads the file.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from export.graph import quiet

_MAX_LEVEL = 127


def int8_graph(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Quantize the weights to int8, and dense layers' activations on the fly; ALP's matching stays exact.

    A rounded similarity would pick other prototypes, so the matmul in front of each ArgMax is left alone.
    """
    # Imported here: it pulls in most of ONNX Runtime's tools, which a float32 export does not need.
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source = onnx.ModelProto()
    source.CopyFrom(graph)
    # The quantizer transposes weights but keeps their recorded shapes, and then refuses its own graph.
    del source.graph.value_info[:]
    scores = {name for node in source.graph.node if node.op_type == "ArgMax" for name in node.input}
    left = [node.name for node in source.graph.node if scores & set(node.output) or node.op_type == "Conv"]
    with tempfile.TemporaryDirectory() as folder, quiet():
        target = Path(folder) / "int8.onnx"
        quantize_dynamic(source, target, weight_type=QuantType.QInt8, nodes_to_exclude=left)
        quantized = onnx.load(str(target))
    _narrow(quantized.graph)
    del quantized.metadata_props[:]
    quantized.metadata_props.extend(graph.metadata_props)
    return quantized


def _narrow(graph: onnx.GraphProto) -> None:
    """Store every convolution's weights as int8 and a scale for each output channel, and widen them in the graph."""
    kernels = {node.input[1] for node in graph.node if node.op_type == "Conv"}
    for tensor in [tensor for tensor in graph.initializer if tensor.name in kernels]:
        name, stored, scale = tensor.name, f"{tensor.name}.int8", f"{tensor.name}.scale"
        small, scales = narrowed(numpy_helper.to_array(tensor))
        graph.initializer.remove(tensor)
        graph.initializer.extend([numpy_helper.from_array(small, stored), numpy_helper.from_array(scales, scale)])
        # not DequantizeLinear: ONNX Runtime leaves that in the graph and computes it for every window
        wide = f"{name}.wide"
        graph.node.insert(0, helper.make_node("Mul", [wide, scale], [name], name=f"{name}.widened"))
        graph.node.insert(0, helper.make_node("Cast", [stored], [wide], name=wide, to=onnx.TensorProto.FLOAT))


def narrowed(kernel: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round a kernel (out, in, …) to int8 and scales (out, 1, …); their product is off by half a scale at most."""
    largest = np.abs(kernel).max(axis=tuple(range(1, kernel.ndim)), keepdims=True)
    scale = np.maximum(largest / np.float32(_MAX_LEVEL), np.finfo(np.float32).tiny)
    return np.rint(kernel / scale).astype(np.int8), scale
