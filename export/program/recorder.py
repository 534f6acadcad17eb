"""Records a computation's calls of torch operators, and the origins of its tensors.

As `torch.fx.experimental.proxy_tensor.make_fx` does it, a fifth of the time: that builds a mode of fake tensors for
each of a step's thousands of calls, and only types and shapes are wanted of them here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.func import functionalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from export.runtime import ProgramError

Decompositions = dict[Any, Callable[..., Any]]


class UnsupportedOperatorError(ProgramError):
    """A computation has an operator that programs do not have."""


@dataclass(eq=False)
class Traced:
    """A tensor of the computation: its type and shape, and the calls that take it."""

    dtype: torch.dtype
    shape: list[int]
    users: list[Call] = field(default_factory=list)
    constant: Tensor | None = None
    """What it holds, if nothing that goes into the computation changes it."""


@dataclass(eq=False)
class Call:
    """A call of an operator, with traced tensors in its arguments."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Traced]

    @property
    def name(self) -> str:
        """The operator's name in whichever overload, without the underscores around it."""
        # "aten::_to_copy.default"
        return str(self.target.name()).partition("::")[2].partition(".")[0].strip("_")

    @property
    def dtype(self) -> torch.dtype:
        """Of the first tensor that it returns."""
        return self.results[0].dtype

    @property
    def shape(self) -> list[int]:
        """Of the first tensor that it returns."""
        return self.results[0].shape

    @property
    def operands(self) -> list[Traced]:
        """All traced tensors among its arguments."""
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Traced)]


@dataclass
class OperatorRecording:
    """What a computation did to its inputs, in order, without what nothing came of."""

    inputs: list[Traced]
    outputs: list[Traced]
    calls: list[Call]


def record(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], decompositions: Decompositions
) -> OperatorRecording:
    """Run a function of tensors once, and return the calls that it came to.

    Raises:
        UnsupportedOperatorError: if it looks at the value of a tensor that it was given.
    """
    recorder = _Recorder(decompositions)
    traced = [recorder.enter(tensor) for tensor in inputs]
    with recorder:
        outputs = [recorder.trace_of(leaf) for leaf in functionalize(function, remove="mutations")(*inputs)]
    return OperatorRecording(traced, outputs, _needed(recorder.calls, outputs))


def _needed(calls: list[Call], outputs: list[Traced]) -> list[Call]:
    wanted, kept = {id(output) for output in outputs}, []
    for call in reversed(calls):
        if any(id(result) in wanted for result in call.results):
            kept.append(call)
            wanted.update(id(operand) for operand in call.operands)
    kept.reverse()
    for call in kept:
        for operand in call.operands:
            operand.users.append(call)
    return kept


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, decompositions: Decompositions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._decompositions = decompositions
        self._traced = WeakIdKeyDictionary()

    def enter(self, tensor: Tensor) -> Traced:
        """Note a tensor that comes from outside or from a call."""
        found = self._traced[tensor] = Traced(tensor.dtype, list(tensor.shape))
        return found

    def trace_of(self, tensor: Tensor) -> Traced:
        """Return what is noted of a tensor; one that no call made is a constant."""
        if tensor not in self._traced:
            self.enter(tensor).constant = tensor.detach().clone()
        found: Traced = self._traced[tensor]
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            found = self._decompositions.get(func, func.decompose)(*args, **kwargs)
        if found is not NotImplemented:
            return found
        if func.name() == "aten::_local_scalar_dense":
            raise UnsupportedOperatorError(
                "the computation reads the value of a tensor, which a graph can't: client hooks must be pure "
                "functions without branches on tensors' values"
            )
        places, spec = pytree.tree_flatten((args, kwargs))
        places = [
            self.trace_of(place_or_tensor) if isinstance(place_or_tensor, Tensor) else place_or_tensor
            for place_or_tensor in places
        ]
        result = func(*args, **kwargs)
        returned = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        given, named = pytree.tree_unflatten(places, spec)
        # a few operators return what they were given
        self.calls.append(Call(func, given, named, [self.enter(leaf) for leaf in returned]))
        return result
