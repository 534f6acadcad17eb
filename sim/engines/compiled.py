"""Runs the stacked training step as a compiled program or a CUDA graph, and measures the device's memory.

A CUDA graph is recorded once, then replayed without launching each kernel. A small network's step consists of hundreds
of kernels of microseconds each, which Python launches one by one while the GPU waits. A replay launches all of them at
once, and gives the same result bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree

from federation.training.local_round import Step

SHARE = 0.8
"""Of the free memory that a chunk may fill: what comes later is no longer, but the allocator's blocks may split."""


class Meter(Protocol):
    """Measures a first chunk."""

    def begin(self) -> None:
        """Start to watch the peak."""
        ...

    def room_for(self, count: int) -> int:
        """Say how many clients fit, after `count` of them were trained."""
        ...


class CudaMeter:
    """CUDA's own figures of this process and of the device."""

    def __init__(self, device: str) -> None:
        self.device, self.before = torch.device(device), 0

    def begin(self) -> None:
        """Start to watch the peak."""
        torch.cuda.reset_peak_memory_stats(self.device)
        self.before = torch.cuda.memory_allocated(self.device)

    def room_for(self, count: int) -> int:
        """Say how many clients fit, after `count` of them were trained."""
        per_client = (torch.cuda.max_memory_allocated(self.device) - self.before) / count
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return clients_that_fit(torch.cuda.mem_get_info(self.device)[0] + cached, per_client)


def meter_of(device: str) -> Meter | None:
    """Return a device's meter; None for a CPU, whose memory is not the limit: there larger chunks are slower."""
    return CudaMeter(device) if torch.device(device).type == "cuda" else None


def clients_that_fit(free_bytes: float, bytes_each: float) -> int:
    """Return how many clients a chunk may have."""
    return max(1, int(SHARE * free_bytes / max(bytes_each, 1.0)))


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed: CUDA has an error of its own, the CPU's allocator only words."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


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


PROGRAMS = 8
"""Compiled at the most in a run: a minute or more each, one for each network, phase and number of stacked clients."""

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
