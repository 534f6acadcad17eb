"""Methods that pass the clients' mean change as a gradient to an optimizer on the server.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan: Adaptive Federated
Optimization, ICLR 2021, arXiv 2003.00295, algorithm 1.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from federation.aggregation.averaging import Accumulator, MeanSums
from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Tensors, Tree


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(Method):
    """w ← w + η · direction(Δ), Δ = mean(w_k) − w; clients are FedAvg's."""

    server_lr: float = 1.0

    @abstractmethod
    def moments(self, params: Tensors) -> Tree:
        """Return the optimizer's state before the first round."""

    @abstractmethod
    def move(self, moments: Tree, change: Tensors) -> tuple[Tree, Tensors]:
        """Return the next state and the direction, from the mean change Δ."""

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Start from the initial model."""
        start = super().server_init(params, buffers, training)
        return {**start, "moments": self.moments(start["params"])}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Send the parameters; the moments stay on the server."""
        return {"params": state["params"]}

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Move along the optimizer's direction."""
        mean, old = self.combined(MeanSums.of(accumulator), state["params"]), state["params"]
        moments, direction = self.move(state["moments"], {name: mean[name] - old[name] for name in old})
        params = {name: value + self.server_lr * direction[name] for name, value in old.items()}
        return {"params": params, "moments": moments}

    @staticmethod
    def zeros(params: Tensors) -> Tensors:
        """Return zeros like the parameters."""
        return {name: torch.zeros_like(value) for name, value in params.items()}
