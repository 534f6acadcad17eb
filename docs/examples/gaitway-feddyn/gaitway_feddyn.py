"""FedDyn: each client's loss is bent so that the clients' optima meet where the sum of their losses is least.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama: Federated Learning Based on Dynamic
Regularization, ICLR 2021, arXiv 2111.04263, algorithm 1.

Differs from the paper: h moves by the mean change of the clients that came, as if they were all; the server does not
know how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from federation.aggregation.averaging import Accumulator, MeanSums
from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Batch, Broadcast, Client, Tensors, TrainingStats, Tree, Update
from federation.records.tree import map_tree, squared_distance
from federation.tasks.task import Task
from federation.training.forward import Network


@dataclass(frozen=True, kw_only=True)
class FedDyn(Method):
    """L_k(w) − ⟨g_k, w⟩ + α/2 ‖w − w_t‖²; w ← mean(w_k) − h/α."""

    name: ClassVar[str] = "feddyn"

    alpha: float = 0.01

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Start the client's g_k at zero."""
        return client._replace(memory={"gradient": map_tree(torch.zeros_like, client.params)})

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Keep the received parameters as the anchor w_t."""
        client, _ = super().receive(client, broadcast)
        return client, {"anchor": broadcast["params"], "gradient": client.memory["gradient"]}

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add the linear and the quadratic term."""
        loss, buffers = super().loss(task, network, params, buffers, batch, round_state)
        linear = torch.stack([(params[name] * value).sum() for name, value in round_state["gradient"].items()]).sum()
        return loss - linear + self.alpha / 2 * squared_distance(params, round_state["anchor"]), buffers

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """g_k ← g_k − α (w_k − w_t)."""
        client, tensors = super().upload(client, round_state, stats)
        anchor, before = round_state["anchor"], client.memory["gradient"]
        gradient = {name: before[name] - self.alpha * (client.params[name] - anchor[name]) for name in before}
        return client._replace(memory={"gradient": gradient}), tensors

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Start from the initial model with h = 0."""
        start = super().server_init(params, buffers, training)
        return {**start, "h": map_tree(torch.zeros_like, start["params"])}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Send w."""
        return {"params": state["params"]}

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> MeanSums:
        """Add parameters; the paper's mean is plain, so that clients weigh the same."""
        return self.fold_params(MeanSums.of(accumulator), update)

    def weight(self, update: Update) -> float:
        """Every client counts once."""
        return 1.0

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """h ← h − α (mean(w_k) − w); w ← mean(w_k) − h/α."""
        old = state["params"]
        mean = self.combined(MeanSums.of(accumulator), old)
        h = {name: state["h"][name] - self.alpha * (mean[name] - old[name]) for name in old}
        return {"params": {name: mean[name] - h[name] / self.alpha for name in old}, "h": h}
