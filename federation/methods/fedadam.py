"""FedAdam: Adam on the server, with the clients' mean change as the gradient.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan: Adaptive Federated
Optimization, ICLR 2021, arXiv 2003.00295, algorithm 2 (no bias correction, v starts at τ²).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from federation.aggregation.server_optimizer import ServerOptimizer
from federation.records import Tensors, Tree


@dataclass(frozen=True, kw_only=True)
class FedAdam(ServerOptimizer):
    """m ← β₁ m + (1 − β₁) Δ; v ← β₂ v + (1 − β₂) Δ²; w ← w + η m / (√v + τ)."""

    name: ClassVar[str] = "fedadam"

    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def moments(self, params: Tensors) -> Tree:
        """Begin with m = 0, v = τ²."""
        zeros = self.zeros(params)
        return {"m": zeros, "v": {name: value + self.tau**2 for name, value in zeros.items()}}

    def move(self, moments: Tree, change: Tensors) -> tuple[Tree, Tensors]:
        """Return the new moments and m / (√v + τ)."""
        m = {name: self.beta1 * moments["m"][name] + (1 - self.beta1) * value for name, value in change.items()}
        v = {name: self.second(moments["v"][name], value) for name, value in change.items()}
        return {"m": m, "v": v}, {name: m[name] / (v[name].sqrt() + self.tau) for name in m}

    def second(self, v: Tensor, change: Tensor) -> Tensor:
        """Return the next second moment."""
        return self.beta2 * v + (1 - self.beta2) * change**2
