"""Ditto: in addition to FedAvg's global model, every client trains a personal one that is kept near the global one.

T. Li, S. Hu, A. Beirami, V. Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
arXiv 2012.04221, equation 2 and algorithm 1.

Both models take the same steps on the same batches: their losses are added, and since they have no parameter in common
and the optimizers work element by element, each trains as if alone. ALP's prototypes, which are not parameters, follow
the global model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Batch, Broadcast, Client, Tensors, Tree
from federation.records.tree import prefixed, squared_distance, with_prefix, without_prefix
from federation.tasks.task import Task
from federation.training.forward import Network

_PERSONAL = "personal:"


@dataclass(frozen=True, kw_only=True)
class Ditto(Method):
    """Global model w by FedAvg; personal model v by CE(v) + λ/2 ‖v − w_t‖²."""

    name: ClassVar[str] = "ditto"

    lam: float = 0.1  # λ

    def shared(self, name: str) -> bool:
        """Share the global model, not the personal one."""
        return not name.startswith(_PERSONAL)

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Start the personal model where the global one starts."""
        return client._replace(params={**client.params, **prefixed(client.params, _PERSONAL)})

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Lay the global model over the client's copy of it, and keep it as the anchor."""
        client, _ = super().receive(client, broadcast)
        return client, {"anchor": broadcast["params"]}

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Return CE(w) + CE(v) + λ/2 ‖v − w_t‖²."""
        loss, moved = super().loss(task, network, without_prefix(params, _PERSONAL), buffers, batch, round_state)
        personal = with_prefix(params, _PERSONAL)
        own = task.mean_loss(network.train(personal, buffers, batch.x, batch.mask), batch)
        return loss + own + self.lam / 2 * squared_distance(personal, round_state["anchor"]), moved

    def serving_model(self, client: Client) -> Client:
        """Serve with the personal model."""
        return client._replace(params=with_prefix(client.params, _PERSONAL))

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Start from the initial model."""
        return {"params": without_prefix(params, _PERSONAL)}

    def global_model(self, client: Client, broadcast: Broadcast) -> Client:
        """Put the global model where the personal one is."""
        received, _ = super().receive(client, broadcast)
        return received._replace(params={**received.params, **prefixed(broadcast["params"], _PERSONAL)})
