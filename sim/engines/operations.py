"""How large a training step is, in floating-point operations: counted, not timed, so that it is always the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from federation.records import Examples
from sim.engines import serial
from sim.engines.job import ClientJob


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
            serial.trained(job._replace(max_steps=steps), round_number)
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
