"""How a round's clients are run: one after the other, or stacked into one program. Both give the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from federation.client_round import Setup, train_one, train_stacked
from federation.local_round import LocalRound
from federation.records import Broadcast, Client, Examples


class Job(NamedTuple):
    """One client's work in a round."""

    client_id: str
    client: Client
    broadcast: Broadcast
    examples: Examples


class Engine(Protocol):
    """Runs jobs; results come as they are ready, in any order."""

    def run(self, setup: Setup, jobs: Sequence[Job], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield (client id, result) for every job."""
        ...


class Serial:
    """One client after the other: what a device does, and the reference for the other engines."""

    def run(self, setup: Setup, jobs: Sequence[Job], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield results in the order of the jobs."""
        for job in jobs:
            result = train_one(
                setup,
                job.client,
                job.broadcast,
                job.examples,
                client_id=job.client_id,
                round_number=round_number,
            )
            yield job.client_id, result


class Stacked:
    """Chunks of clients of similar length as one vmapped program."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk

    def run(self, setup: Setup, jobs: Sequence[Job], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield results chunk by chunk, longest clients first, so that little is padding."""
        longest_first = sorted(jobs, key=lambda job: (-len(job.examples.y), job.client_id))
        for start in range(0, len(longest_first), self.chunk):
            part = longest_first[start : start + self.chunk]
            results = train_stacked(
                setup,
                [job.client for job in part],
                [job.broadcast for job in part],
                [job.examples for job in part],
                client_ids=[job.client_id for job in part],
                round_number=round_number,
            )
            yield from zip([job.client_id for job in part], results, strict=True)


def engine_named(name: str, chunk: int) -> Engine:
    """Return the engine `serial` or `stacked`."""
    return Stacked(chunk) if name == "stacked" else Serial()
