"""FedYogi: FedAdam with a second moment that moves by Δ² at most, so that it forgets slowly.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan: Adaptive Federated
Optimization, ICLR 2021, arXiv 2003.00295, algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from federation.methods.fedadam import FedAdam


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAdam):
    """v ← v − (1 − β₂) Δ² sign(v − Δ²)."""

    name: ClassVar[str] = "fedyogi"

    def second(self, v: Tensor, change: Tensor) -> Tensor:
        """Return the next second moment."""
        square = change**2
        return v - (1 - self.beta2) * square * torch.sign(v - square)
