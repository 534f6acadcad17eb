"""Traces a pure function of trees of tensors into one ONNX graph, whose inputs and outputs have the leaves' names.

The recorder follows the function itself, so nothing of a training step is written a second time. torch's own exporter
takes a minute for HART's step, and onnxscript's optimizer does not end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import onnx
import torch.utils._pytree as pytree
from onnx import helper
from torch import Tensor

from export.program.decompositions import DECOMPOSITIONS
from export.program.graph_writer import TYPES, GraphWriter
from export.program.manifest import DTYPES, IR_VERSION, OPSET, OUTPUT, TensorType
from export.program.operators import emit
from export.program.recorder import OperatorRecording, Traced, record
from federation.records.tree import flatten
from models.layers.exporting import exporting

Tree = Mapping[str, Any]


class TracedFunction(NamedTuple):
    """What a function came to: its graph (None if it computes nothing), and how its inputs and outputs are called.

    `passed` names the outputs that are inputs as they came: a graph would only copy them.
    """

    model: onnx.ModelProto | None
    inputs: dict[str, TensorType]
    outputs: dict[str, TensorType]
    passed: dict[str, str]


def trace(function: Callable[..., Tree], arguments: Tree) -> TracedFunction:
    """Follow function(**arguments), trees of tensors, to the tree that it returns.

    Raises:
        UnsupportedOperatorError: naming the operator of torch's that a graph cannot have.
    """
    tree = as_dicts(arguments)
    names = list(flatten(tree))
    # the tracer takes a tensor that comes twice for one input: local and global prototypes, say, which then part
    leaves, spec = pytree.tree_flatten(tree)
    leaves = [leaf.detach().clone() for leaf in leaves]
    returned: list[str] = []

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        found = flatten(as_dicts(function(**_restored(arguments, pytree.tree_unflatten(list(values), spec)))))
        returned[:] = list(found)
        return tuple(found.values())

    with exporting():
        recording = record(flat, leaves, DECOMPOSITIONS)
    return _written(recording, names, returned)


def as_dicts(tree: Any) -> Any:
    """Return a tree with records as dicts by their fields, without what is None."""
    if hasattr(tree, "_asdict"):
        tree = tree._asdict()
    if isinstance(tree, Mapping):
        return {name: as_dicts(value) for name, value in tree.items() if value is not None}
    return tree


def _restored(pattern: Any, tree: Any) -> Any:
    """Return a tree of dicts with records where the pattern has them."""
    if hasattr(pattern, "_fields"):
        return type(pattern)(**{name: _restored(getattr(pattern, name), tree.get(name)) for name in pattern._fields})
    if isinstance(pattern, Mapping):
        return {name: _restored(value, tree[name]) for name, value in pattern.items()}
    return tree


def _written(recording: OperatorRecording, names: list[str], returned: list[str]) -> TracedFunction:
    graph = GraphWriter()
    places = dict(zip(recording.inputs, names, strict=True))
    graph.names.update(places)
    for call in recording.calls:
        made = emit(graph, call)
        graph.names.update(zip(call.results, [made] if isinstance(made, str) else made, strict=True))
    results = dict(zip(returned, recording.outputs, strict=True))
    passed = {name: places[node] for name, node in results.items() if node in places}
    computed = {name: node for name, node in results.items() if node not in places}
    graph.name_outputs({OUTPUT + name: node for name, node in computed.items()})
    used = {name for node in graph.nodes for name in node.input}
    inputs = {name: node for node, name in places.items() if name in used}
    return TracedFunction(
        _model(graph, inputs, computed) if computed else None,
        {name: _type(node) for name, node in inputs.items()},
        {name: _type(node) for name, node in computed.items()},
        {name: source for name, source in passed.items() if name != source},
    )


def _model(graph: GraphWriter, inputs: dict[str, Traced], outputs: dict[str, Traced]) -> onnx.ModelProto:
    infos = [
        [helper.make_tensor_value_info(prefix + name, TYPES[node.dtype], node.shape) for name, node in tensor]
        for prefix, tensor in (("", inputs.items()), (OUTPUT, outputs.items()))
    ]
    body = helper.make_graph(graph.nodes, "program", infos[0], infos[1], initializer=graph.constants)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(body, opset_imports=[opset], ir_version=IR_VERSION, producer_name="gaitway")


def _type(node: Traced) -> TensorType:
    return TensorType(dtype=DTYPES[str(node.dtype).removeprefix("torch.")], shape=tuple(node.shape))
