"""Writes an ONNX graph: nodes, deduplicated constants, and the names of traced tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from export.program.recorder import Traced

TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
    torch.bool: TensorProto.BOOL,
}
UNSIGNED = {4: (TensorProto.UINT32, np.uint32), 8: (TensorProto.UINT64, np.uint64)}
"""By bytes: ONNX shifts unsigned numbers alone."""

Value = str | list[str]
"""The name of what a node returns, or one for each of several tensors."""


class GraphWriter:
    """Collects nodes and constants; `value` and `cast` give traced tensors as names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.names: dict[Traced, str] = {}
        self._kept: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._kinds: dict[str, torch.dtype] = {}

    def add(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node with one output, and return its name."""
        return self.add_several(operator, inputs, 1, **attributes)[0]

    def add_several(self, operator: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs, and return their names."""
        names = [f"{len(self.nodes)}.{i}" if i else f"{len(self.nodes)}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names

    def name_outputs(self, outputs: Mapping[str, Traced]) -> None:
        """Give values names as outputs of the graph, a copy only where one has a name already or no node made it."""
        made = {name for node in self.nodes for name in node.output}
        renamed: dict[str, str] = {}
        copies: list[onnx.NodeProto] = []
        for name, traced in outputs.items():
            value = self.value(traced)
            if value in made and value not in renamed:
                renamed[value] = name
            else:
                copies.append(helper.make_node("Identity", [value], [name]))
        self.nodes += copies
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [renamed.get(output, output) for output in names]

    def value(self, traced: Traced) -> str:
        """Return the name of a traced tensor."""
        if traced not in self.names and traced.constant is not None:
            self.names[traced] = self.constant(traced.constant)
        return self.names[traced]

    def cast(self, argument: Any, dtype: torch.dtype) -> str:
        """Return a traced tensor, or a number, in that type."""
        if not isinstance(argument, Traced):
            return self.constant(argument, dtype)
        return self.converted(self.value(argument), argument.dtype, dtype)

    def converted(self, name: str, dtype: torch.dtype, wanted: torch.dtype) -> str:
        """Convert a value of the type that came to another."""
        return name if dtype == wanted else self.add("Cast", [name], to=TYPES[wanted])

    def constant(self, value: Any, dtype: torch.dtype = torch.int64) -> str:
        """Return the name of a constant: numbers of torch's type, or a tensor as it is."""
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.array(value, kind)
        return self.constant_array(array)

    def constant_array(self, array: Any) -> str:
        """Return the name of a constant array."""
        array = np.asarray(array, order="C")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._kept:
            self._kept[key] = name = f"c{len(self.constants)}"
            self.constants.append(numpy_helper.from_array(array, name))
        return self._kept[key]

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """Give a value a shape."""
        return self.add("Reshape", [name, self.constant(list(shape))])

    def slice(self, name: str, dim: int, start: int, end: int, step: int = 1) -> str:
        """Take every step-th entry from start to end along one dimension."""
        return self.add("Slice", [name, *(self.constant([bound]) for bound in (start, end, dim, step))])

    def filled(self, number: Any, shape: Sequence[int], dtype: torch.dtype) -> str:
        """Return a tensor of one number; a graph holds the number alone."""
        scalar = self.constant(number, dtype)
        return self.add("Expand", [scalar, self.constant(list(shape))]) if len(shape) else scalar

    def shifted_right(self, name: str, bits: int, dtype: torch.dtype) -> str:
        """Shift whole numbers as if they had no sign: zeros come in from above."""
        kind, unsigned = UNSIGNED[dtype.itemsize]
        moved = self.add(
            "BitShift",
            [self.add("Cast", [name], to=kind), self.constant_array(np.array(bits, unsigned))],
            direction="RIGHT",
        )
        return self.add("Cast", [moved], to=TYPES[dtype])
