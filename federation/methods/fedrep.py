"""FedRep: as FedPer, but a local round first fits the head to the received base, then the base to that head.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai: Exploiting Shared Representations for Personalized Federated
Learning, ICML 2021, arXiv 2102.07078, algorithm 1.

Both train at one learning rate, as in the paper and in the authors' code (github.com/lgcollins/FedRep: one optimizer
for both); `head_lr_factor` is an option of ours.
Differs from the paper: it takes one epoch for the base and more for the head; here `head_epochs` is an option and the
base trains for the plan's epochs, as every other method's does. Their code also fits every client's head for ten epochs
after the last round, before it is scored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federation.methods.fedper import FedPer
from federation.plan import TrainingConfig
from federation.records import Phase
from federation.records.head import check_head_lr_factor, is_base, is_head


@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer):
    """Head first, base frozen; then the base, head frozen."""

    name: ClassVar[str] = "fedrep"

    head_epochs: int = 1
    head_lr_factor: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a learning rate that does not train the head, too."""
        super().__post_init__()
        check_head_lr_factor(self.name, self.head_lr_factor)

    def phases(self, training: TrainingConfig) -> tuple[Phase, ...]:
        """Return the two phases; the head trains at its own learning rate."""
        return Phase(is_head, self.head_epochs, self.head_lr_factor), Phase(is_base, training.epochs)
