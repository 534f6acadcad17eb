"""FedRep: as FedPer, but a local round first fits the head to the received base, then the base to that head.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai: Exploiting Shared Representations for Personalized Federated
Learning, ICML 2021, arXiv 2102.07078, algorithm 1.

Differs from the paper: it takes one epoch for the base and more for the head; here `head_epochs` is an option and the
base trains for the task's epochs, as every other method's does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federation.head import is_base, is_head
from federation.methods.fedper import FedPer
from federation.plan import Task
from federation.records import Phase


@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer):
    """Head first, base frozen; then the base, head frozen."""

    name: ClassVar[str] = "fedrep"

    head_epochs: int = 1

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Return the two phases."""
        return Phase(is_head, self.head_epochs), Phase(is_base, task.epochs)
