"""How a round's clients are run: one after the other, or stacked into one program. Both give the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from federation.client_round import Setup, train_one, train_stacked
from federation.local_round import LocalRound
from federation.records import Broadcast, Client, Examples


class Job(NamedTuple):
    """One client's work in a round; `max_steps` cuts a straggler's short."""

    client_id: str
    setup: Setup
    client: Client
    broadcast: Broadcast
    examples: Examples
    max_steps: int | None = None


class Engine(Protocol):
    """Runs jobs; results come as they are ready, in any order."""

    def run(self, jobs: Sequence[Job], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield (client id, result) for every job."""
        ...


class Serial:
    """One client after the other: what a device does, and the reference for the other engines."""

    def run(self, jobs: Sequence[Job], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield results in the order of the jobs."""
        for job in jobs:
            result = train_one(
                job.setup,
                job.client,
                job.broadcast,
                job.examples,
                client_id=job.client_id,
                round_number=round_number,
                max_steps=job.max_steps,
            )
            yield job.client_id, result


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


def engine_named(name: str, chunk: int) -> Engine:
    """Return the engine `serial` or `stacked`."""
    return Stacked(chunk) if name == "stacked" else Serial()
