"""FedProx: FedAvg with a proximal term that holds clients near the received model.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020, arXiv 1812.06127, equation 2. What stragglers did is used (section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from federation.method import Method, Traits
from federation.records import Batch, Broadcast, Client, Tensors, Tree
from federation.records.tree import squared_distance
from federation.tasks.task import Task
from federation.training.forward import Network


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """CE + μ/2 ‖w − w_t‖² over all parameters."""

    name: ClassVar[str] = "fedprox"
    traits: ClassVar[Traits] = Traits(uses_partial_work=True)

    mu: float = 0.01

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Keep the received parameters as the anchor w_t."""
        client, _ = super().receive(client, broadcast)
        return client, {"anchor": broadcast["params"]}

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add the proximal term."""
        loss, buffers = super().loss(task, network, params, buffers, batch, round_state)
        return loss + self.mu / 2 * squared_distance(params, round_state["anchor"]), buffers
