"""The stacked training step as one compiled program, and as it is where the compiler cannot be had."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from federation.training.local_round import Step
from sim.engines.device_memory import is_out_of_memory

PROGRAMS = 8
"""Compiled at the most in a run: a minute or more each, one for each network, phase and number of stacked clients."""

_log = logging.getLogger(__name__)
Program = Callable[[list[Tensor]], Any]


class Compiler:
    """Compiles steps, one program for each key and shape of their tensors; steps are pure functions of trees.

    A step is recorded as one graph first: torch.compile cannot follow a module's hooks through vmap, and a graph of
    fixed shapes is never compiled twice. On CUDA the program is replayed as a CUDA graph.
    """

    def __init__(
        self, device: str = "cpu", *, report: Callable[[str], None] = _log.warning, max_programs: int = PROGRAMS
    ) -> None:
        self.on_cuda, self.report, self.max_programs = device.startswith("cuda"), report, max_programs
        self.programs: dict[Hashable, Program] = {}
        self._closed = False

    def compiled(self, key: Hashable, step: Step) -> Step:
        """Return a step that gives what `step` gives, up to float order; `key` tells apart what shapes do not."""
        return partial(self._run, key, step)

    def close(self) -> None:
        """Compile nothing more, and go on with what there is."""
        self._closed = True

    def _run(self, key: Hashable, step: Step, *trees: Any) -> Any:
        tensors, layout = _pytree.tree_flatten(trees)
        # one program serves all steps of a round: what is expanded over clients in the first is not in the next, and
        # what is one tensor there (the parameters and what they are pulled to) are two from then on
        tensors = [_laid_out(tensor.detach()) for tensor in tensors]
        key = (key, str(layout), *((tensor.shape, tensor.dtype) for tensor in tensors))
        if key in self.programs:
            return self.programs[key](tensors)
        if self._closed:
            return step(*trees)
        if len(self.programs) == self.max_programs:
            self._give_up(
                f"{self.max_programs} programs are compiled, which is the limit; steps of other sizes run as they are"
            )
            return step(*trees)
        try:
            program = self._program(step, tensors, layout)
            result = program(tensors)
        except Exception as error:  # whatever the compiler lacks or trips over, the step itself does not need it
            if is_out_of_memory(error):
                raise
            self._give_up(f"torch.compile failed, so steps run as they are: {_first_line(error)}")
            return step(*trees)
        self.programs[key] = program
        return result

    def _program(self, step: Step, tensors: list[Tensor], layout: _pytree.TreeSpec) -> Program:
        from torch.fx.experimental.proxy_tensor import make_fx  # a second to import, and seldom used

        results: list[_pytree.TreeSpec] = []

        def flat(*tensors: Tensor) -> list[Tensor]:
            leaves, spec = _pytree.tree_flatten(step(*_pytree.tree_unflatten(list(tensors), layout)))
            results.append(spec)
            return leaves

        graph = make_fx(flat)(*tensors)
        fast = torch.compile(graph, dynamic=False, mode="reduce-overhead" if self.on_cuda else "default")

        @torch.no_grad()
        def program(tensors: list[Tensor]) -> Any:
            leaves = fast(*tensors)
            if self.on_cuda:  # the next replay writes over what this one returned
                leaves = [leaf.clone() for leaf in leaves]
            return _pytree.tree_unflatten(leaves, results[0])

        return program

    def _give_up(self, why: str) -> None:
        self._closed = True
        self.report(why)


def _laid_out(tensor: Tensor) -> Tensor:
    """Return a tensor with the strides that follow from its shape; a copy only where its elements lie otherwise."""
    whole = tensor.contiguous()
    # whatever stride a dimension of size 1 has counts as contiguous, and torch.compile would compile for it again
    return whole.view(-1).view(whole.shape) if 1 in whole.shape else whole


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
