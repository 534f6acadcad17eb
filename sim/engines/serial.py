"""One client after the other: what a device does, and the reference for the other engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from federation.training.client_round import train_one
from federation.training.local_round import LocalRound
from sim.engines.job import ClientJob


class Serial:
    """Trains in this process."""

    def run(self, jobs: Sequence[ClientJob], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield results in the order of the jobs."""
        for job in jobs:
            yield job.client_id, trained(job, round_number)


def trained(job: ClientJob, round_number: int) -> LocalRound:
    """Run one client's round."""
    return train_one(
        job.setup,
        job.client,
        job.broadcast,
        job.examples,
        client_id=job.client_id,
        round_number=round_number,
        max_steps=job.max_steps,
    )
