"""Converts a torch module to ONNX, with normalization and metadata inside, in float32 or with int8 weights.

In int8, dense layers compute in int8 and convolutions are stored in it: quantizing a convolution's input as it runs
costs these small networks more than the product saves (0.21 ms a window of the CNN for 0.15 in float32), so a
convolution's weights are only kept as int8. ONNX Runtime widens them once, when it loads the file.
"""

from __future__ import annotations

import copy
import gc
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

from export.runtime import GateError, ModelMetadata
from models.layers.alp import set_inference

OPSET = 18
MAX_IR = 10
MAX_FILE_BYTES = 256 << 20
_NESTED = {getattr(onnx.AttributeProto, f"{kind}{many}") for kind in ("GRAPH", "SPARSE_TENSOR") for many in ("", "S")}
_NESTED.add(onnx.AttributeProto.TENSORS)
BATCH = 64
"""Examples that torch computes together at the most."""


class ExportModule(nn.Module):
    """What is exported: raw examples in, logits and embedding out, in evaluation and independent of the batch."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, metadata: ModelMetadata) -> None:
        super().__init__()
        self.module = copy.deepcopy(module).cpu().float()
        spec = metadata.input
        for name, numbers in (("mean", spec.mean), ("std", spec.std)):
            self.register_buffer(name, torch.tensor(numbers, dtype=torch.float32).reshape(spec.along_channels))
        self.rows = min(BATCH, metadata.answered.inference_batch)
        self.alp_layers = set_inference(self.module, "row")
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map raw examples x (B, *shape), in units of `metadata.input`, to logits (B, C, …), embedding (B, D, …)."""
        features, logits = self.module((x - self.mean) / self.std)
        return logits, features

    def logits(self, examples: NDArray[np.float32], inference: str = "row") -> NDArray[np.float32]:
        """Run in torch on raw examples (n, …), in batches; `inference` as in `models.layers.alp.ALP`."""
        rows = self.rows
        set_inference(self.module, inference)
        with torch.no_grad():
            parts = [self(torch.from_numpy(examples[i : i + rows]))[0] for i in range(0, len(examples), rows)]
        set_inference(self.module, "row")
        return torch.cat(parts).numpy()


def float32_graph(deployed: ExportModule, metadata: ModelMetadata, *, fixed: bool = False) -> onnx.ModelProto:
    """Export with a free batch, one file, opset 18 and IR of at most 10; the metadata is in the file.

    fixed: of one example at a time.
    """
    # A batch of two or more: with one, torch.export would take the batch for a constant.
    example = torch.zeros(1 if fixed else 4, *metadata.input.shape)
    with quiet(), _uncollected():
        program = torch.onnx.export(
            deployed,
            (example,),
            dynamo=True,
            dynamic_shapes=None if fixed else {"x": {0: torch.export.Dim("batch")}},
            external_data=False,
            opset_version=OPSET,
            input_names=["x"],
            output_names=["logits", "embedding"],
            verbose=False,
        )
    if program is None:
        raise GateError("torch.onnx.export returned no program; torch >= 2.6 with dynamo is needed")
    graph: onnx.ModelProto = program.model_proto
    graph.ir_version = min(graph.ir_version, MAX_IR)
    # torch's notes on itself: stack traces with the folders of this machine, and three quarters of a small file
    for noted in (graph, graph.graph, *graph.graph.node, *graph.graph.value_info):
        del noted.metadata_props[:]
    _describe(graph, metadata)
    onnx.checker.check_model(graph, full_check=True)
    return graph


def _describe(graph: onnx.ModelProto, metadata: ModelMetadata) -> None:
    versions = {name: version(name) for name in ("torch", "onnx", "onnxscript", "onnxruntime")}
    onnx.helper.set_model_props(graph, replace(metadata, versions=versions).to_properties())


def ready_graph(path: Path) -> onnx.ModelProto | None:
    """Read a graph that may come from elsewhere; None if it is none, is too large, or needs more than it holds itself.

    A file that names others has them read from this machine's disk, and operators of another domain are code.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        data = path.read_bytes()
        onnx.checker.check_model(data, full_check=True)  # it parses them, too
    except (OSError, ValueError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    found = onnx.load_model_from_string(data)
    tensors = [*found.graph.initializer, *(attribute.t for node in found.graph.node for attribute in node.attribute)]
    outside = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors)
    kinds = {attribute.type for node in found.graph.node for attribute in node.attribute}
    others = found.functions or any(node.domain not in ("", "ai.onnx") for node in found.graph.node)
    names = ([value.name for value in found.graph.input], [value.name for value in found.graph.output])
    is_plain = not (outside or others or kinds & _NESTED or found.graph.sparse_initializer)
    return found if is_plain and names == (["x"], ["logits", "embedding"]) else None


def with_weights(
    graph: onnx.ModelProto, first: ExportModule, other: ExportModule, metadata: ModelMetadata
) -> onnx.ModelProto:
    """Return the graph that was exported of `first` with the weights of `other`, a network of the same shape.

    Raises:
        GateError: if a weight that differs is not in the graph as the module has it.
    """
    found = onnx.ModelProto()
    found.CopyFrom(graph)
    places = {tensor.name: tensor for tensor in found.graph.initializer}
    own, its = first.state_dict(), other.state_dict()
    if own.keys() != its.keys() or any(own[name].shape != its[name].shape for name in own):
        raise GateError("the networks have weights of other names or shapes; export each of them by itself")
    for name in (name for name in own if not torch.equal(own[name], its[name])):
        if name not in places or not np.array_equal(onnx.numpy_helper.to_array(places[name]), own[name].numpy()):
            raise GateError(f"{name} is not in the graph as the network has it; export each network by itself")
        places[name].CopyFrom(onnx.numpy_helper.from_array(its[name].numpy(), name))
    _describe(found, metadata)
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what torch's exporter and the quantizer say about themselves, and nothing else."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    # 'torchvision is not installed': it is not needed. 'consider to run pre-processing': static shapes only.
    registration.setLevel(logging.ERROR)
    hint = _PreprocessingHint()
    logging.getLogger().addFilter(hint)
    try:
        with warnings.catch_warnings():
            # torch.export's own use of its deprecated LeafSpec (torch 2.13).
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            yield
    finally:
        registration.setLevel(level)
        logging.getLogger().removeFilter(hint)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile: most of what an export makes is in use, and looking through it takes a quarter."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _PreprocessingHint(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "pre-processing before quantization" not in record.getMessage()


_MAX_LEVEL = 127


def int8_graph(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Quantize the weights to int8, and dense layers' activations on the fly; ALP's matching stays exact.

    A rounded similarity would pick other prototypes, and a rounded convolution exceed another bias, so the matmul in
    front of each ArgMax and Greater is left alone.
    """
    # Imported here: it pulls in most of ONNX Runtime's tools, which a float32 export does not need.
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source = onnx.ModelProto()
    source.CopyFrom(graph)
    # The quantizer transposes weights but keeps their recorded shapes, and then refuses its own graph.
    del source.graph.value_info[:]
    scores = {name for node in source.graph.node if node.op_type in ("ArgMax", "Greater") for name in node.input}
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
