"""Runs clients one after the other, as a device does; the reference for the other engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from federation.records import Broadcast, Client, Examples
from federation.training.client_round import train_one
from federation.training.local_round import LocalRound, Setup


class ClientJob(NamedTuple):
    """One client's work in a round; `max_steps` cuts a straggler's short."""

    client_id: str
    setup: Setup
    client: Client
    broadcast: Broadcast
    examples: Examples
    max_steps: int | None = None


class Engine(Protocol):
    """Runs jobs; results come as they are ready, in any order."""

    def run(self, jobs: Sequence[ClientJob], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield (client id, result) for every job."""
        ...


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


def operations_of_a_step(job: ClientJob, round_number: int) -> int:
    """Count the floating-point operations of a client's training step on a batch as full as its examples make it.

    0 for a method without steps, of which counting them would train a client twice.
    """
    if not job.setup.method.phases(job.setup.training):
        return 0
    job = one_batch(job)

    def counted(steps: int) -> int:
        counter = _Counter()
        with counter:
            trained(job._replace(max_steps=steps), round_number)
        return counter.operations

    return counted(1) - counted(0)  # less what a round measures before and after its steps


def one_batch(job: ClientJob) -> ClientJob:
    """Return the job with its first batch as all its examples."""
    return job._replace(
        examples=Examples(*(part[: job.setup.training.batch_size] for part in job.examples)), max_steps=None
    )


class _Counter(TorchDispatchMode):
    """Adds up the products of what runs within it, by torch's own formulas.

    torch's FlopCounterMode does, too, and imports torch's compiler for it: three seconds of each run.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what is counted is not compiled; else torch imports its compiler to say so

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func.overloadpacket):
            self.operations += int(formula(*args, **(kwargs or {}), out_val=out))
        return out
