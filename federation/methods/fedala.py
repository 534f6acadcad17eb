"""FedALA: each client mixes the global model into its own, element by element, with learned weights.

J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan: FedALA: Adaptive Local Aggregation for Personalized
Federated Learning, AAAI 2023, arXiv 2212.01197: adaptive local aggregation.

The lower layers are taken over; of the higher ones θ̂ = θ_k + (θ − θ_k) ⊙ W, 0 ≤ W ≤ 1, W = 1 at first. A phase of its
own moves W by plain gradient steps of rate η, clipped after each; then θ̂ trains as in FedAvg, and all of it travels.
Compared with the authors' code (github.com/TsingZ0/FedALA and PFLlib), which uses the head for the higher layers.
Differs from the paper and its code: the round's loss is taken on all of the client's examples in shuffled batches, not
on s = 80 % of them; W learns for the same number of epochs in every round, where theirs learns until its loss stands
still in the second round and for one epoch in later ones (clients that train together take equally many steps).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from federation.errors import SettingsError
from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Batch, Broadcast, Client, Phase, Tensors, TrainingStats, Tree
from federation.records.head import is_head
from federation.records.tree import merge, prefixed, select, with_prefix, without_prefix
from federation.tasks.task import Task
from federation.training.forward import Network

_WEIGHT = "aggregation_weight:"


@dataclass(frozen=True, kw_only=True)
class FedAla(Method):
    """θ̂ = θ_k + (θ − θ_k) ⊙ W; W ← clip(W − η ∂CE/∂W, 0, 1)."""

    name: ClassVar[str] = "fedala"

    eta: float = 1.0  # η, the rate of W
    weight_epochs: int = 1  # in which W learns, each round
    layers: Literal["head", "all"] = "head"  # the higher layers, of which W says how much is taken over

    def __post_init__(self) -> None:
        """Refuse rates and epochs that are none.

        Raises:
            SettingsError: naming the option.
        """
        super().__post_init__()
        if not 0 <= self.eta < float("inf"):
            raise SettingsError(f"{self.name}: eta={self.eta}: expected a learning rate, such as 1")
        if self.weight_epochs < 0:
            raise SettingsError(f"{self.name}: weight_epochs={self.weight_epochs}: expected 0 or more epochs")

    def shared(self, name: str) -> bool:
        """Share the model, not the weights W."""
        return not name.startswith(_WEIGHT)

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Begin with W = 1: the global model is taken over whole."""
        ones = {name: torch.ones_like(value) for name, value in select(client.params, self._is_mixed).items()}
        return client._replace(params={**client.params, **prefixed(ones, _WEIGHT)})

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Take over the lower layers, and mix the higher ones by the W of the last round."""
        received, _ = super().receive(client, broadcast)
        before = with_prefix(client.params, _WEIGHT)
        gap = {name: broadcast["params"][name] - client.params[name] for name in before}
        mixed = {name: client.params[name] + gap[name] * weight for name, weight in before.items()}
        received = received._replace(params=merge(received.params, mixed))
        return received, {"gap": gap, "weights": before}

    def phases(self, training: TrainingConfig) -> tuple[Phase, ...]:
        """Learn W, then train the model."""
        weights = Phase(lambda name: not self.shared(name), self.weight_epochs, self.eta / training.lr, plain_sgd=True)
        return weights, Phase(self.shared, training.epochs)

    def project(self, params: Tensors) -> Tensors:
        """Clip W to [0, 1]."""
        return {name: value if self.shared(name) else value.clamp(0, 1) for name, value in params.items()}

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Return the loss of the mixed model, of which the gradient of W is ∂CE/∂θ̂ ⊙ (θ − θ_k)."""
        return super().loss(task, network, _mixed(params, round_state), buffers, batch, round_state)

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send and keep the trained model, with what W has mixed into it."""
        mixed = _mixed(client.params, round_state)
        return super().upload(client._replace(params=merge(client.params, mixed)), round_state, stats)

    def serving_model(self, client: Client) -> Client:
        """Serve with the client's own model."""
        return client._replace(params=without_prefix(client.params, _WEIGHT))

    def global_model(self, client: Client, broadcast: Broadcast) -> Client:
        """Put the global model in place of the client's own."""
        return super().receive(client, broadcast)[0]

    def _is_mixed(self, name: str) -> bool:
        return self.layers == "all" or is_head(name)


def _mixed(params: Tensors, round_state: Tree) -> Tensors:
    """Return θ̂: the parameters, which began mixed by the last round's W, and what W has changed since then."""
    model, before, gap = without_prefix(params, _WEIGHT), round_state["weights"], round_state["gap"]
    weights = with_prefix(params, _WEIGHT)
    return merge(model, {name: model[name] + gap[name] * (weights[name] - before[name]) for name in weights})
