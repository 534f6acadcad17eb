"""One worker process per core, one thread each, longest clients first."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch

from federation.records import Client, Tree
from federation.training.local_round import LocalRound, Setup
from sim.engines import serial, stacked
from sim.engines.compiled import Compiler
from sim.engines.fork_map import fork_map
from sim.engines.serial import ClientJob, one_batch, operations_of_a_step
from sim.engines.shared_memory import MmapArena

SMALL_STEP = 30_000_000
"""Floating-point operations of a training step below which the cost of calling torch is most of its time.

Measured on two AVX-512 cores with ten clients of one length at a time, 2026-11-27: 2.6 to 10 million are 2 to 2.8
times as fast stacked, 17 million 1.6 times, 35 million a tenth slower, 41 million by two fifths.
"""

PARAMETER_OPERATIONS = 100
"""What a parameter counts beside a step's operations: each client's are read and written several times in a step.

Without it a dense network of 200,000 would look small, and is 1.7 times as slow stacked.
"""

MAX_STACKED = 20
"""Clients at a time, at most, where their steps are small."""

WORTHWHILE = 5
"""How many times a chunk's longest client its clients must have to do, all together, to be trained together.

A step of five to ten stacked clients takes as long as three to six steps of one, and all wait for the longest.
"""

# glibc's mallopt, from malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE = (1 << 31) - 1
_MAX_BLOCK = 1 << 30

_log = logging.getLogger(__name__)


class Processes:
    """Trains clients in forks of this process, `chunk` at a time.

    One at a time, the numbers are those of `Serial` on one thread, bit for bit; stacked, up to float order. With
    `chunk` None clients are stacked where a step of theirs is small, and they are of like length: counted in operations
    and examples, not by the clock, so that a run chooses the same again. `compiled`: the step of stacked clients is
    compiled, here, and inherited by the forks.
    """

    def __init__(
        self,
        workers: int,
        chunk: int | None = 1,
        *,
        compiled: bool = False,
        say: Callable[[str], None] = _log.warning,
    ) -> None:
        keep_freed_memory()  # forks inherit it
        self.workers, self.chunk, self.say = workers, chunk, say
        self.compiler = Compiler(report=say) if compiled else None
        self._arena = MmapArena(None)  # a result lies where one of an earlier round lay that nobody needs any more
        self.together: dict[Setup, int] = {}
        self._operations: dict[Setup, float] = {}  # of a step, for each of its examples
        self.warm: set[tuple[Setup, int]] = set()

    def run(self, jobs: Sequence[ClientJob], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield results as they come."""
        longest = {jobs[number].setup: jobs[number] for number in reversed(longest_first(jobs))}
        shortest = {jobs[number].setup: jobs[number] for number in longest_first(jobs)}
        for setup, job in longest.items():
            self._choose(setup, job, round_number)
        groups = self.groups_of(jobs)
        self._warm_up(groups, shortest, round_number)

        def work(number: int) -> Tree:
            if self.compiler:
                self.compiler.close()  # in this fork, with which it would be lost
            results = trained(groups[number], round_number, self.compiler)
            return {str(k): _tree(result) for k, result in enumerate(results)}

        def name(number: int) -> str:
            ids = [job.client_id for job in groups[number]]
            return f"client {ids[0]}" if len(ids) == 1 else f"clients {', '.join(ids)}"

        for number, tree in fork_map(range(len(groups)), work, self.workers, name, self._arena):
            for job, result in zip(groups[number], tree.values(), strict=True):
                yield job.client_id, _result(result)

    def _choose(self, setup: Setup, longest: ClientJob, round_number: int) -> None:
        """Settle how many clients of a setup train together now: whose steps are of few examples are another time's."""
        known = setup in self.together
        self.together[setup] = self.chunk or self._at_most(setup, longest, round_number)
        if self.compiler and self.together[setup] == 1 and not known:
            self.say("Clients train one by one because their steps are large: --compile has nothing to compile.")

    def _at_most(self, setup: Setup, longest: ClientJob, round_number: int) -> int:
        """Return how many clients make their calls of torch few enough, 1 where their steps are large."""
        examples, known = min(setup.training.batch_size, len(longest.examples.y)), self._operations.get(setup)
        if not known:  # nothing is known of a step by clients without examples
            self._operations[setup] = operations_of_a_step(longest, round_number) / max(1, examples)
        operations = self._operations[setup] * examples
        parameters = sum(value.numel() for value in longest.client.params.values())
        if operations + PARAMETER_OPERATIONS * parameters >= SMALL_STEP:
            return 1
        if operations and not known:
            self.say(
                f"A training step has {operations / 1e6:.0f} million operations, less than calling torch costs: each "
                f"process trains up to {MAX_STACKED} clients of like length together."
            )
        return MAX_STACKED

    def groups_of(self, jobs: Sequence[ClientJob]) -> list[list[ClientJob]]:
        """Divide the jobs into chunks alike in network, length and number, the longest first."""
        alike: dict[Setup, list[ClientJob]] = {}
        for number in longest_first(jobs):
            alike.setdefault(jobs[number].setup, []).append(jobs[number])
        groups = []
        for setup, longest in alike.items():
            at_most = min(self.together[setup], -(-len(longest) // self.workers))
            count = -(-len(longest) // at_most)
            ends = [len(longest) * k // count for k in range(count + 1)]
            for chunk in (longest[begin:end] for begin, end in pairwise(ends)):
                groups += [chunk] if self._is_worthwhile(chunk) else [[job] for job in chunk]
        return sorted(groups, key=lambda group: (-sum(map(work_of, group)), group[0].client_id))

    def _is_worthwhile(self, chunk: Sequence[ClientJob]) -> bool:
        """Whether clients finish sooner together than one by one; as asked, where their number or compiling was."""
        is_asked_for = self.chunk is not None or self.compiler is not None
        return is_asked_for or sum(map(work_of, chunk)) >= WORTHWHILE * work_of(chunk[0])

    def _warm_up(
        self, groups: Sequence[Sequence[ClientJob]], shortest: dict[Setup, ClientJob], round_number: int
    ) -> None:
        """Train a batch of each setup's shortest client, once and for nothing, in as many copies as a chunk has.

        What torch prepares for a network's shapes (oneDNN's kernels) and what is compiled forks inherit; else each
        makes it anew each round. On one thread, as the forks have: a compiled program keeps the number it was made for.
        """
        for group in groups:
            setup, size = group[0].setup, len(group)
            if (setup, size) not in self.warm:
                with _one_thread():
                    trained([one_batch(shortest[setup])] * size, round_number, self.compiler)
                self.warm.add((setup, size))


def trained(group: Sequence[ClientJob], round_number: int, compiler: Compiler | None = None) -> list[LocalRound]:
    """Train clients together, or one alone as a device does."""
    if len(group) == 1:
        return [serial.trained(group[0], round_number)]
    return stacked.trained(group, round_number, compiler)


def longest_first(jobs: Sequence[ClientJob]) -> list[int]:
    """Return the numbers of the jobs: the longest one last would leave the other cores idle at the end."""
    return sorted(range(len(jobs)), key=lambda number: (-work_of(jobs[number]), jobs[number].client_id))


def work_of(job: ClientJob) -> int:
    """Return what a job takes, in examples."""
    count, training = len(job.examples.y), job.setup.training
    epochs = sum(phase.epochs for phase in job.setup.method.phases(training))
    return count * epochs if job.max_steps is None else min(count * epochs, job.max_steps * training.batch_size)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tree(result: LocalRound) -> Tree:
    return {"client": result.client._asdict(), "upload": result.upload, "loss": result.loss}


def _result(tree: Tree) -> LocalRound:
    return LocalRound(Client(**tree["client"]), tree["upload"], tree["loss"])


def keep_freed_memory() -> bool:
    """Let this process and its forks reuse freed blocks of any size; return whether the C library can.

    A step of a network of a million parameters frees and takes megabytes: their page faults were up to a tenth of the
    time of a client's round. What a process holds stays at its peak.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MAX_BLOCK)) and bool(mallopt(_TRIM_THRESHOLD, _LARGE))
