"""Converts an exported network for phones' accelerators: one example at a time, with operators of NNAPI and Core ML.

ONNX Runtime delegates the parts of a graph with supported operators and fixed shapes to an accelerator; each part costs
a hand-over. So normalizations are written as means, products and roots, and 1D convolutions as those of images of
height 1 (NNAPI has no 1D convolutions). ALP's choice of a prototype stays unchanged because neither supports it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Attributes = dict[str, Any]
BROADCASTING = {"Add", "Div", "Mul", "Sub"}


class _Rewriter:
    """Writes a graph's nodes anew, with the constants that they need."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        known = (*graph.value_info, *graph.input, *graph.output)
        self.shapes = {value.name: [side.dim_value for side in value.type.tensor_type.shape.dim] for value in known}
        self.shapes |= {name: list(value.dims) for name, value in self.constants.items()}
        self.readers: dict[str, set[str]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, set()).add(node.op_type)
        self.nodes: list[onnx.NodeProto] = []
        self._count = 0

    def rank(self, name: str) -> int:
        """Return how many sides a value has; 0 where that is not known."""
        return len(self.shapes.get(name, ()))

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """Add a constant; returns its name."""
        name = self._new()
        self.constants[name] = numpy_helper.from_array(np.asarray(values, dtype), name)
        return name

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node; returns its output."""
        output = output or self._new()
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"{operator}.{output}", **attributes))
        return output

    def normalized(self, x: str, axes: Sequence[int], epsilon: float) -> str:
        """Subtract the mean over some axes and divide by the deviation."""
        over = self.constant(axes, np.int64)
        centred = self.add("Sub", x, self.add("ReduceMean", x, over, keepdims=1))
        variance = self.add("ReduceMean", self.add("Mul", centred, centred), over, keepdims=1)
        deviation = self.add("Sqrt", self.add("Add", variance, self.constant(epsilon)))
        return self.add("Div", centred, deviation)

    def _new(self) -> str:
        self._count += 1
        return f"fixed.{self._count}"


def with_accelerated_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph of fixed shapes by operators that phones' accelerators have, as far as they go."""
    found = onnx.ModelProto()
    found.CopyFrom(onnx.shape_inference.infer_shapes(model))
    rewriter = _Rewriter(found.graph)
    for node in found.graph.node:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        rewrite = _REWRITES.get(node.op_type)
        if rewrite is None or not rewrite(rewriter, node, attributes):
            rewriter.nodes.append(node)
    nodes = [*rewriter.nodes]
    del found.graph.node[:], found.graph.initializer[:], found.graph.value_info[:]
    found.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    found.graph.initializer.extend(value for name, value in rewriter.constants.items() if name in used)
    onnx.checker.check_model(found, full_check=True)
    return found


def _convolution(rewriter: _Rewriter, node: onnx.NodeProto, attributes: Attributes) -> bool:
    """Write a convolution (1, C, T) as one of (1, C, 1, T)."""
    x, kernel, *bias = node.input
    if rewriter.rank(x) != 3 or kernel not in rewriter.constants:
        return False
    axis = rewriter.constant([2], np.int64)
    wide = rewriter.constant(numpy_helper.to_array(rewriter.constants[kernel])[:, :, None])
    for name, before in (("kernel_shape", 1), ("strides", 1), ("dilations", 1)):
        if name in attributes:
            attributes[name] = [before, *attributes[name]]
    begin, end = attributes.get("pads", [0, 0])
    attributes["pads"] = [0, begin, 0, end]
    image = rewriter.add("Conv", rewriter.add("Unsqueeze", x, axis), wide, *bias, **attributes)
    rewriter.add("Squeeze", image, axis, output=node.output[0])
    return True


def _instance_norm(rewriter: _Rewriter, node: onnx.NodeProto, attributes: Attributes) -> bool:
    """Normalize each channel of (1, C, …)."""
    x, scale, bias = node.input
    rank = rewriter.rank(x)
    if rank < 3 or not {scale, bias} <= {*rewriter.constants}:
        return False
    shape = (1, -1, *[1] * (rank - 2))
    weights = [numpy_helper.to_array(rewriter.constants[name]).reshape(shape) for name in (scale, bias)]
    _scaled(rewriter, node, rewriter.normalized(x, range(2, rank), attributes.get("epsilon", 1e-5)), *weights)
    return True


def _layer_norm(rewriter: _Rewriter, node: onnx.NodeProto, attributes: Attributes) -> bool:
    """Normalize the last axes."""
    x, scale, *bias = node.input
    rank, axis = rewriter.rank(x), attributes.get("axis", -1)
    if not rank or len(node.output) > 1 or not {scale, *bias} <= {*rewriter.constants}:
        return False
    weights = [numpy_helper.to_array(rewriter.constants[name]) for name in (scale, *bias)]
    axes = range(axis % rank, rank)
    _scaled(rewriter, node, rewriter.normalized(x, axes, attributes.get("epsilon", 1e-5)), *weights)
    return True


def _length(rewriter: _Rewriter, node: onnx.NodeProto, attributes: Attributes) -> bool:
    """Write the length of vectors as a root of their mean square."""
    x, *axes = node.input
    if len(axes) != 1 or axes[0] not in rewriter.constants or not all(rewriter.shapes.get(x, [0])):
        return False
    over = numpy_helper.to_array(rewriter.constants[axes[0]])
    count = math.prod(rewriter.shapes[x][axis] for axis in over)
    mean = rewriter.add("ReduceMean", rewriter.add("Mul", x, x), axes[0], keepdims=attributes.get("keepdims", 1))
    rewriter.add("Sqrt", rewriter.add("Mul", mean, rewriter.constant(count)), output=node.output[0])
    return True


def _expansion(rewriter: _Rewriter, node: onnx.NodeProto, attributes: Attributes) -> bool:
    """Leave out what those that read it do by themselves."""
    x, output = node.input[0], node.output[0]
    if not rewriter.readers.get(output, {""}) <= BROADCASTING or rewriter.rank(x) != rewriter.rank(output):
        return False
    rewriter.add("Identity", x, output=output)
    return True


def _scaled(
    rewriter: _Rewriter, node: onnx.NodeProto, x: str, scale: np.ndarray, bias: np.ndarray | None = None
) -> None:
    """Write x · scale + bias as the node's output."""
    if bias is None or not bias.any():
        rewriter.add("Mul", x, rewriter.constant(scale), output=node.output[0])
        return
    rewriter.add(
        "Add", rewriter.add("Mul", x, rewriter.constant(scale)), rewriter.constant(bias), output=node.output[0]
    )


_REWRITES: dict[str, Callable[[_Rewriter, onnx.NodeProto, Attributes], bool]] = {
    "Conv": _convolution,
    "Expand": _expansion,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "ReduceL2": _length,
}
