"""FedAvgM: the server moves with momentum along the mean change of the clients.

T.-M. H. Hsu, H. Qi, M. Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019, arXiv 1909.06335, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federation.aggregation.server_optimizer import ServerOptimizer
from federation.records import Tensors, Tree


@dataclass(frozen=True, kw_only=True)
class FedAvgM(ServerOptimizer):
    """m ← β m + Δ; w ← w + η m."""

    name: ClassVar[str] = "fedavgm"

    momentum: float = 0.9

    def moments(self, params: Tensors) -> Tree:
        """Start at rest."""
        return {"m": self.zeros(params)}

    def move(self, moments: Tree, change: Tensors) -> tuple[Tree, Tensors]:
        """Return the new velocity, twice."""
        velocity = {name: self.momentum * moments["m"][name] + value for name, value in change.items()}
        return {"m": velocity}, velocity
