"""One worker process per core, one thread each, longest clients first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from federation.client_round import Setup
from federation.local_round import LocalRound
from federation.records import Client, Tree
from sim.engines.allocator import keep_freed_memory
from sim.engines.forked import forked
from sim.engines.job import Job
from sim.engines.serial import trained


class Processes:
    """Trains clients in forks of this process; the numbers are those of `Serial` on one thread, bit for bit."""

    def __init__(self, workers: int) -> None:
        keep_freed_memory()  # forks inherit it
        self.workers = workers
        self.warm: set[Setup] = set()

    def run(self, jobs: Sequence[Job], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield results as they come."""
        self._warm_up(jobs, round_number)

        def work(number: int) -> Tree:
            result = trained(jobs[number], round_number)
            return {"client": result.client._asdict(), "upload": result.upload, "loss": result.loss}

        for number, tree in forked(
            longest_first(jobs), work, self.workers, lambda number: f"client {jobs[number].client_id}"
        ):
            yield jobs[number].client_id, LocalRound(Client(**tree["client"]), tree["upload"], tree["loss"])

    def _warm_up(self, jobs: Sequence[Job], round_number: int) -> None:
        """Train the shortest client of each setup for an epoch, once and for nothing.

        What torch prepares for a network's shapes (oneDNN's kernels) forks inherit; else each makes it anew each round.
        """
        shortest = {job.setup: job for job in sorted(jobs, key=lambda job: (-len(job.examples.y), job.client_id))}
        for setup, job in shortest.items():
            if setup not in self.warm:
                steps = -(-len(job.examples.y) // setup.task.batch_size)
                trained(job._replace(max_steps=min(steps, job.max_steps or steps)), round_number)
                self.warm.add(setup)


def longest_first(jobs: Sequence[Job]) -> list[int]:
    """Return the numbers of the jobs: the longest one last would leave the other cores idle at the end."""
    return sorted(range(len(jobs)), key=lambda number: (-work_of(jobs[number]), jobs[number].client_id))


def work_of(job: Job) -> int:
    """Return what a job takes, in examples."""
    count, task = len(job.examples.y), job.setup.task
    epochs = sum(phase.epochs for phase in job.setup.method.phases(task))
    return count * epochs if job.max_steps is None else min(count * epochs, job.max_steps * task.batch_size)
