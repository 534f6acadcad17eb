"""Many clients as one program: their parameters stand along a first dimension, and `vmap` lifts the training step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from federation.client_round import Setup, train_stacked
from federation.local_round import LocalRound
from sim.engines.job import Job


class Stacked:
    """Chunks of clients with one network and of similar length as one vmapped program."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk

    def run(self, jobs: Sequence[Job], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield results chunk by chunk, longest clients first, so that little is padding."""
        alike: dict[Setup, list[Job]] = {}
        for job in sorted(jobs, key=lambda job: (-len(job.examples.y), job.client_id)):
            alike.setdefault(job.setup, []).append(job)
        for longest_first in alike.values():
            for start in range(0, len(longest_first), self.chunk):
                yield from self._chunk(longest_first[start : start + self.chunk], round_number)

    def _chunk(self, jobs: Sequence[Job], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        results = train_stacked(
            jobs[0].setup,
            [job.client for job in jobs],
            [job.broadcast for job in jobs],
            [job.examples for job in jobs],
            client_ids=[job.client_id for job in jobs],
            round_number=round_number,
            max_steps=[job.max_steps for job in jobs],
        )
        yield from zip([job.client_id for job in jobs], results, strict=True)
