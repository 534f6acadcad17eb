"""One function per torch operator of a training step, which writes the ONNX nodes that compute it.

ONNX Runtime folds constants, merges equal nodes and fuses what it can when it loads a graph, so nothing here is
optimized but what it would not see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from export.program.graph_writer import GraphWriter, Value
from export.program.recorder import Call, Traced, UnsupportedOperatorError

Emit = Callable[[GraphWriter, Call], Value]
EMITTERS: dict[str, Emit] = {}
END = 1 << 62
"""Behind the last entry of any dimension."""

UNARY = {
    "neg": "Neg",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "relu": "Relu",
    "erf": "Erf",
    "abs": "Abs",
    "sign": "Sign",
    "round": "Round",
    "floor": "Floor",
    "reciprocal": "Reciprocal",
    "logical_not": "Not",
}
BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "remainder": "Mod",
    "maximum": "Max",
    "minimum": "Min",
    "bitwise_and": "BitwiseAnd",
    "bitwise_xor": "BitwiseXor",
}
LOGICAL = {"bitwise_and": "And", "bitwise_xor": "Xor", "bitwise_or": "Or", "mul": "And", "logical_and": "And"}
COMPARISONS = {"eq": "Equal", "ne": "Equal", "gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual"}
REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin", "prod": "ReduceProd"}


def emit(graph: GraphWriter, call: Call) -> Value:
    """Write one call of torch's.

    Raises:
        UnsupportedOperatorError: for an operator, or a use of one, that is not written here.
    """
    if call.name not in EMITTERS:
        raise UnsupportedOperatorError(f"torch's operator {call.target} has no form in programs")
    return EMITTERS[call.name](graph, call)


def emits(*names: str) -> Callable[[Emit], Emit]:
    """Register a function for operators of these names, in whichever overload."""

    def register(function: Emit) -> Emit:
        EMITTERS.update(dict.fromkeys(names, function))
        return function

    return register


def _argument(call: Call, place: int, default: Any = None) -> Any:
    return call.args[place] if len(call.args) > place else default


def _refuse(call: Call, condition: bool) -> None:
    if condition:
        raise UnsupportedOperatorError(f"programs have no form of {call.target} with arguments {call.args}")


@emits(*UNARY)
def _unary(graph: GraphWriter, call: Call) -> str:
    return graph.add(UNARY[call.name], [graph.cast(call.args[0], call.dtype)])


def _like(operand: Any) -> Any:
    """Return something that torch promotes types by as by the operand: a tensor without dimensions counts less."""
    if not isinstance(operand, Traced):
        return operand
    return torch.empty([1] * len(operand.shape), dtype=operand.dtype)


@emits("bitwise_not")
def _bitwise_not(graph: GraphWriter, call: Call) -> str:
    if call.dtype == torch.bool:
        return graph.add("Not", [graph.value(call.args[0])])
    return graph.add("Sub", [graph.constant(-1, call.dtype), graph.value(call.args[0])])


@emits("log1p")
def _log1p(graph: GraphWriter, call: Call) -> str:
    unit = graph.constant(1, call.dtype)
    return graph.add("Log", [graph.add("Add", [graph.cast(call.args[0], call.dtype), unit])])


@emits("rsqrt")
def _rsqrt(graph: GraphWriter, call: Call) -> str:
    return graph.add("Reciprocal", [graph.add("Sqrt", [graph.cast(call.args[0], call.dtype)])])


@emits(*BINARY, "bitwise_or", "logical_and")
def _binary(graph: GraphWriter, call: Call) -> str:
    kind = call.dtype
    left, right = (graph.cast(arg, kind) for arg in call.args[:2])
    if kind == torch.bool:
        _refuse(call, call.name not in LOGICAL)
        return graph.add(LOGICAL[call.name], [left, right])
    _refuse(call, call.name not in BINARY)
    factor = call.kwargs.get("alpha", 1)
    if factor != 1:
        right = graph.add("Mul", [right, graph.constant(factor, kind)])
    if call.kwargs.get("rounding_mode"):
        _refuse(call, call.kwargs["rounding_mode"] != "floor" or kind.is_floating_point)
        left = graph.add("Sub", [left, graph.add("Mod", [left, right])])
    return graph.add(BINARY[call.name], [left, right])


@emits(*COMPARISONS)
def _comparison(graph: GraphWriter, call: Call) -> str:
    kind = torch.result_type(*(_like(arg) for arg in call.args[:2]))
    kind = torch.int32 if kind == torch.bool else kind
    found = graph.add(COMPARISONS[call.name], [graph.cast(arg, kind) for arg in call.args[:2]])
    return graph.add("Not", [found]) if call.name == "ne" else found


@emits(*REDUCTIONS)
def _reduction(graph: GraphWriter, call: Call) -> str:
    dims = _argument(call, 1)
    if dims is None or dims == []:
        dims = list(range(len(call.args[0].shape)))
    dims = [dims] if isinstance(dims, int) else list(dims)
    operand = graph.cast(call.args[0], call.dtype)
    return graph.add(
        REDUCTIONS[call.name], [operand, graph.constant(dims)], keepdims=int(bool(_argument(call, 2, False)))
    )


@emits("any")
def _any(graph: GraphWriter, call: Call) -> str:
    _refuse(call, len(call.args) > 1)
    dims = list(range(len(call.args[0].shape)))
    whole = graph.cast(call.args[0], torch.int32)
    most = graph.add("ReduceMax", [whole, graph.constant(dims)], keepdims=0) if dims else whole
    return graph.converted(most, torch.int32, torch.bool)


@emits("view", "reshape", "unsafe_view", "squeeze", "unsqueeze", "squeeze_")
def _reshape(graph: GraphWriter, call: Call) -> str:
    _refuse(call, call.dtype != call.args[0].dtype)
    return graph.reshape(graph.value(call.args[0]), call.shape)


@emits("clone", "alias", "detach", "lift_fresh_copy")
def _same(graph: GraphWriter, call: Call) -> str:
    return graph.value(call.args[0])


@emits("to_copy")
def _convert(graph: GraphWriter, call: Call) -> str:
    return graph.cast(call.args[0], call.dtype)


@emits("expand")
def _expand(graph: GraphWriter, call: Call) -> str:
    if call.shape == call.args[0].shape:
        return graph.value(call.args[0])
    return graph.add("Expand", [graph.value(call.args[0]), graph.constant(call.shape)])


@emits("full", "full_like")
def _full(graph: GraphWriter, call: Call) -> str:
    return graph.filled(call.args[1], call.shape, call.dtype)


@emits("zeros", "zeros_like", "new_zeros")
def _zeros(graph: GraphWriter, call: Call) -> str:
    return graph.filled(0, call.shape, call.dtype)


@emits("ones", "ones_like")
def _ones(graph: GraphWriter, call: Call) -> str:
    return graph.filled(1, call.shape, call.dtype)


@emits("scalar_tensor")
def _scalar(graph: GraphWriter, call: Call) -> str:
    return graph.constant(call.args[0], call.dtype)


@emits("arange")
def _arange(graph: GraphWriter, call: Call) -> str:
    bounds = call.args if len(call.args) > 1 else (0, call.args[0])
    return graph.add("Range", [graph.constant(bound, call.dtype) for bound in (*bounds, 1)[:3]])


@emits("permute")
def _permute(graph: GraphWriter, call: Call) -> str:
    order = list(call.args[1])
    return graph.add("Transpose", [graph.value(call.args[0])], perm=[axis % len(order) for axis in order])


@emits("slice")
def _slice(graph: GraphWriter, call: Call) -> str:
    dim, start, end = (_argument(call, i, 0) or 0 for i in (1, 2, 3))
    end = min(end, END) if _argument(call, 3) is not None else END
    return graph.slice(graph.value(call.args[0]), dim, start, end, _argument(call, 4, 1))


@emits("slice_scatter")
def _slice_scatter(graph: GraphWriter, call: Call) -> str:
    x, source = (graph.value(arg) for arg in call.args[:2])
    dim, start = _argument(call, 2, 0), _argument(call, 3) or 0
    size = call.shape[dim]
    end = size if _argument(call, 4) is None else min(_argument(call, 4), size)
    _refuse(call, _argument(call, 5, 1) != 1 or start < 0 or end < 0)
    before = [graph.slice(x, dim, 0, start)] if start else []
    after = [graph.slice(x, dim, end, size)] if end < size else []
    parts = [*before, source, *after]
    return graph.add("Concat", parts, axis=dim) if len(parts) > 1 else source


@emits("select")
def _select(graph: GraphWriter, call: Call) -> str:
    return graph.add("Gather", [graph.value(call.args[0]), graph.constant(call.args[2])], axis=call.args[1])


@emits("cat")
def _concatenate(graph: GraphWriter, call: Call) -> str:
    parts = [graph.cast(arg, call.dtype) for arg in call.args[0]]
    return graph.add("Concat", parts, axis=_argument(call, 1, 0))


@emits("split", "split_with_sizes")
def _split(graph: GraphWriter, call: Call) -> list[str]:
    axis, parts = _argument(call, 2, 0), call.results
    sizes = [int(part.shape[axis]) for part in parts]
    if len(sizes) == 1:
        return [graph.value(call.args[0])]
    return graph.add_several("Split", [graph.value(call.args[0]), graph.constant(sizes)], len(sizes), axis=axis)


@emits("constant_pad_nd")
def _pad(graph: GraphWriter, call: Call) -> str:
    pairs, dims = list(call.args[1]), len(call.shape)
    before, after = [0] * dims, [0] * dims
    for i in range(len(pairs) // 2):
        before[dims - 1 - i], after[dims - 1 - i] = pairs[2 * i], pairs[2 * i + 1]
    number = graph.constant(_argument(call, 2, 0), call.dtype)
    return graph.add("Pad", [graph.value(call.args[0]), graph.constant(before + after), number])


@emits("mm", "bmm")
def _product(graph: GraphWriter, call: Call) -> str:
    return graph.add("MatMul", [graph.value(arg) for arg in call.args[:2]])


@emits("addmm")
def _shifted_product(graph: GraphWriter, call: Call) -> str:
    _refuse(call, bool(call.kwargs.get("beta", 1) != 1 or call.kwargs.get("alpha", 1) != 1))
    shift, left, right = (graph.value(arg) for arg in call.args[:3])
    return graph.add("Add", [graph.add("MatMul", [left, right]), shift])


@emits("pow")
def _power(graph: GraphWriter, call: Call) -> str:
    base = graph.cast(call.args[0], call.dtype)
    if call.args[1] == 2:
        return graph.add("Mul", [base, base])
    if call.args[1] == -0.5:  # which Pow computes by logarithms
        return graph.add("Reciprocal", [graph.add("Sqrt", [base])])
    return graph.add("Pow", [base, graph.cast(call.args[1], call.dtype)])


@emits("where")
def _where(graph: GraphWriter, call: Call) -> str:
    return graph.add("Where", [graph.value(call.args[0]), *(graph.cast(arg, call.dtype) for arg in call.args[1:])])


@emits("clamp")
def _clamp(graph: GraphWriter, call: Call) -> str:
    found = graph.cast(call.args[0], call.dtype)
    for place, operator_name in ((1, "Max"), (2, "Min")):
        if (bound := _argument(call, place)) is not None:
            found = graph.add(operator_name, [found, graph.cast(bound, call.dtype)])
    return found


@emits("rshift", "bitwise_right_shift")
def _shift(graph: GraphWriter, call: Call) -> str:
    """Shift with the sign; where all who use the result mask its copies off, without."""
    x, bits, kind = graph.value(call.args[0]), int(call.args[1]), call.dtype
    if all(_masks(user, 8 * kind.itemsize - bits) for user in call.results[0].users):
        return graph.shifted_right(x, bits, kind)
    minus_one = graph.constant(-1, kind)
    mirrored = graph.add("Sub", [minus_one, graph.shifted_right(graph.add("Sub", [minus_one, x]), bits, kind)])
    negative = graph.add("Less", [x, graph.constant(0, kind)])
    return graph.add("Where", [negative, mirrored, graph.shifted_right(x, bits, kind)])


def _masks(user: Call, bits: int) -> bool:
    """Whether a call takes of its operand the lowest so many bits alone."""
    mask = _argument(user, 1)
    return user.name == "bitwise_and" and isinstance(mask, int) and 0 <= mask < 1 << bits


@emits("softmax")
def _softmax(graph: GraphWriter, call: Call) -> str:
    return graph.add("Softmax", [graph.value(call.args[0])], axis=call.args[1])


@emits("log_softmax")
def _log_softmax(graph: GraphWriter, call: Call) -> str:
    return graph.add("LogSoftmax", [graph.value(call.args[0])], axis=call.args[1])


@emits("native_layer_norm")
def _layer_norm(graph: GraphWriter, call: Call) -> list[str]:
    shape, dims = list(call.args[1]), len(call.args[0].shape)
    kind = call.args[0].dtype
    scale, shift = (
        graph.constant(np.full(shape, number).tolist(), kind) if arg is None else graph.value(arg)
        for arg, number in zip(call.args[2:4], (1, 0), strict=True)
    )
    return graph.add_several(
        "LayerNormalization",
        [graph.value(call.args[0]), scale, shift],
        3,
        axis=dims - len(shape),
        epsilon=float(call.args[4]),
    )


@emits("convolution")
def _convolution(graph: GraphWriter, call: Call) -> str:
    """Write what `decompositions.convolution` leaves: several dimensions, dilation or groups."""
    stride, padding, dilation, transposed, _, groups = call.args[3:9]
    _refuse(call, bool(transposed))
    operands = [graph.value(arg) for arg in call.args[:3] if arg is not None]
    return graph.add(
        "Conv",
        operands,
        strides=stride,
        pads=[*padding, *padding],
        dilations=dilation,
        group=groups,
        kernel_shape=call.args[1].shape[2:],
    )


@emits("gather")
def _gather(graph: GraphWriter, call: Call) -> str:
    return graph.add("GatherElements", [graph.value(call.args[0]), graph.value(call.args[2])], axis=call.args[1])


@emits("scatter")
def _scatter(graph: GraphWriter, call: Call) -> str:
    source = call.args[3]
    values = graph.value(source) if isinstance(source, Traced) else graph.filled(source, call.args[2].shape, call.dtype)
    return graph.add(
        "ScatterElements", [graph.value(call.args[0]), graph.value(call.args[2]), values], axis=call.args[1]
    )


@emits("scatter_reduce")
def _scatter_reduce(graph: GraphWriter, call: Call) -> str:
    x, dim, index, source, how = call.args[:5]
    names = {"amax": "max", "amin": "min", "sum": "add"}
    _refuse(call, how not in names or not call.kwargs.get("include_self", True))
    operands = [graph.value(operand) for operand in (x, index, source)]
    return graph.add("ScatterElements", operands, axis=dim, reduction=names[str(how)])


@emits("index")
def _index(graph: GraphWriter, call: Call) -> str:
    indexed = [(axis, index) for axis, index in enumerate(call.args[1]) if index is not None]
    _refuse(call, len(indexed) != 1 or indexed[0][1].dtype == torch.bool)
    axis, index = indexed[0]
    return graph.add("Gather", [graph.value(call.args[0]), graph.value(index)], axis=axis)


@emits("index_put")
def _index_put(graph: GraphWriter, call: Call) -> str:
    indices = list(call.args[1])
    _refuse(call, len(indices) != 1 or indices[0].dtype == torch.bool)
    index = graph.reshape(graph.value(indices[0]), [-1, 1])
    how = {"reduction": "add"} if _argument(call, 3) else {}
    return graph.add("ScatterND", [graph.value(call.args[0]), index, graph.value(call.args[2])], **how)


@emits("argmax")
def _argmax(graph: GraphWriter, call: Call) -> str:
    _refuse(call, _argument(call, 1) is None)
    return graph.add("ArgMax", [graph.value(call.args[0])], axis=call.args[1], keepdims=int(_argument(call, 2, False)))


@emits("topk")
def _top(graph: GraphWriter, call: Call) -> list[str]:
    operands = [graph.value(call.args[0]), graph.constant([call.args[1]])]
    return graph.add_several("TopK", operands, 2, axis=_argument(call, 2, -1), largest=int(_argument(call, 3, True)))
