"""Runs many clients as one program: their parameters are stacked along a first dimension, and `vmap` lifts the step."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from federation.training.client_round import train_stacked
from federation.training.local_round import LocalRound, Setup, Step
from sim.engines.compiled import Compiler, CudaGraphs, Meter, is_out_of_memory, meter_of
from sim.engines.serial import ClientJob
from sim.errors import EngineError

CHUNK = 8
"""Clients at a time where memory cannot be measured, and in the first chunk where it can."""

FasterSteps = Compiler | CudaGraphs

_log = logging.getLogger(__name__)


class Stacked:
    """Chunks of clients with one network and of similar length as one vmapped program.

    `chunk` is how many at a time; None: as many as the device has memory for, measured on the first chunk, which has
    the longest clients. Where memory runs out all the same, the chunk is halved and done again.
    `compiled`: the training step is compiled, once for each network, phase and size of chunk. On CUDA it is otherwise
    recorded as a graph.
    """

    def __init__(
        self,
        chunk: int | None = None,
        device: str = "cpu",
        *,
        compiled: bool = False,
        say: Callable[[str], None] = _log.warning,
    ) -> None:
        self.chunk, self.say = chunk or CHUNK, say
        self.compiler: FasterSteps | None = Compiler(device, report=say) if compiled else None
        if not compiled and torch.device(device).type == "cuda":
            self.compiler = CudaGraphs(report=say)
        self.meter: Meter | None = None if chunk else meter_of(device)

    def run(self, jobs: Sequence[ClientJob], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield results chunk by chunk, longest clients first, so that little is padding.

        Raises:
            EngineError: if memory does not suffice for a single client.
        """
        alike: dict[Setup, list[ClientJob]] = {}
        for job in sorted(jobs, key=lambda job: (-len(job.examples.y), job.client_id)):
            alike.setdefault(job.setup, []).append(job)
        for longest_first in alike.values():
            waiting = deque(longest_first)
            while waiting:
                some = [waiting.popleft() for _ in range(min(self.chunk, len(waiting)))]
                results = self._measured(some, round_number)
                if results is None:
                    waiting.extendleft(reversed(some))
                else:
                    yield from zip([job.client_id for job in some], results, strict=True)

    def _measured(self, jobs: Sequence[ClientJob], round_number: int) -> list[LocalRound] | None:
        """Train a chunk and find the size of the next from what it took; None where memory ran out."""
        if self.meter:
            self.meter.begin()
        try:
            results = trained(jobs, round_number, self.compiler)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._halve(len(jobs), jobs[0].client_id)
            return None
        if self.meter:
            self.chunk = max(self.chunk, self.meter.room_for(len(jobs)))
            self.meter = None  # measured once: the longest clients came first
        return results

    def _halve(self, tried: int, client_id: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if tried == 1:
            raise EngineError(
                f"client {client_id}: its round alone needs more memory than there is; smaller batches help"
            )
        self.chunk, self.meter = tried // 2, None
        self.say(f"Out of memory with {tried} clients at a time; continuing with {self.chunk}.")


def trained(
    jobs: Sequence[ClientJob], round_number: int, compiler: Compiler | CudaGraphs | None = None
) -> list[LocalRound]:
    """Train these clients, which have one setup, together."""
    setup = jobs[0].setup

    def compiled(rate: float, step: Step) -> Step:
        return compiler.compiled((setup, rate), step) if compiler else step

    return train_stacked(
        setup,
        [job.client for job in jobs],
        [job.broadcast for job in jobs],
        [job.examples for job in jobs],
        client_ids=[job.client_id for job in jobs],
        round_number=round_number,
        max_steps=[job.max_steps for job in jobs],
        compiled=compiled,
    )
