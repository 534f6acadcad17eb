"""The stacked training step as a CUDA graph: recorded once, then replayed without a launch for each of its kernels.

A small network's step is some hundreds of kernels of microseconds each, which Python launches one after the other: the
GPU waits. A replay launches all of them at once, and computes what the step itself would, bit for bit.
"""

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

GRAPHS = 32
"""Recorded at the most in a run: one for each network, phase, number of stacked clients and rate."""

_log = logging.getLogger(__name__)
Replay = Callable[[list[Tensor]], Any]


class CudaGraphs:
    """Records steps, one graph for each key and shape of their tensors; steps are pure functions of trees.

    The first step of a kind runs as it is, so that whatever loads on first use is loaded; the second is recorded.
    What a GPU cannot record (a number that is read back, a copy from the host) runs as it is from then on.
    """

    def __init__(self, *, report: Callable[[str], None] = _log.warning, max_graphs: int = GRAPHS) -> None:
        self.report, self.max_graphs = report, max_graphs
        self.graphs: dict[Hashable, Replay] = {}
        self._seen: set[Hashable] = set()
        self._closed = False
        self._memory: Any = None

    def compiled(self, key: Hashable, step: Step) -> Step:
        """Return a step that gives what `step` gives; `key` tells apart what shapes do not."""
        return partial(self._run, key, step)

    def _run(self, key: Hashable, step: Step, *trees: Any) -> Any:
        tensors, layout = _pytree.tree_flatten(trees)
        key = (key, str(layout), *((tensor.shape, tensor.dtype) for tensor in tensors))
        if (replay := self.graphs.get(key)) is not None:
            return replay(tensors)
        if key not in self._seen or self._closed:
            self._seen.add(key)
            return step(*trees)
        if len(self.graphs) == self.max_graphs:
            self._close(f"{self.max_graphs} CUDA graphs are recorded, which is the limit; other steps run as they are")
            return step(*trees)
        try:
            replay = self.graphs[key] = self._recorded(step, tensors, layout)
        except Exception as error:  # whatever cannot be recorded: the step itself does not need it
            if is_out_of_memory(error):
                raise
            self._close(f"a step cannot be recorded as a CUDA graph, so steps run as they are: {_first_line(error)}")
            return step(*trees)
        return replay(tensors)

    def _recorded(self, step: Step, tensors: list[Tensor], layout: _pytree.TreeSpec) -> Replay:
        if self._memory is None:
            self._memory = torch.cuda.graph_pool_handle()
        # what arrives in each step lies elsewhere; a graph reads from where it was recorded
        places = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
        given = _pytree.tree_unflatten(places, layout)
        aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            step(*given)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # all graphs have one pool: they never run at the same time, and results are copied out of it
        with torch.cuda.graph(graph, pool=self._memory):
            leaves, results = _pytree.tree_flatten(step(*given))
        return partial(_replay, graph, places, leaves, results)

    def _close(self, why: str) -> None:
        self._closed = True
        self.report(why)


@torch.no_grad()
def _replay(
    graph: Any, places: list[Tensor], leaves: list[Tensor], results: _pytree.TreeSpec, tensors: list[Tensor]
) -> Any:
    torch._foreach_copy_(places, tensors)  # one launch
    graph.replay()
    return _pytree.tree_unflatten([leaf.clone() for leaf in leaves], results)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
