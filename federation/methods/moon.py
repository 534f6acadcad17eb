"""MOON: pulls features towards those of the received model, and away from those of the client's previous model.

Q. Li, B. He, D. Song: Model-Contrastive Federated Learning, CVPR 2021, arXiv 2103.16257, equations 3 and 4.

Both models that are compared with are fixed and in evaluation mode. A client that has not trained yet, in whichever
round it joins, has no previous model: the received one stands in, and the contrast moves nothing.
Differs from the paper: the contrast is taken on the features that enter the head, without an extra projection head,
so that every model of the table can be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Batch, Broadcast, Client, Tensors, TrainingStats, Tree
from federation.records.tree import leaves, where
from federation.tasks.task import Task, masked_mean
from federation.training.forward import Network


@dataclass(frozen=True, kw_only=True)
class Moon(Method):
    """CE + μ·ℓ, ℓ = −log( e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ}) )."""

    name: ClassVar[str] = "moon"

    mu: float = 1.0
    temperature: float = 0.5

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Note that the client's model is not one that it has trained."""
        return client._replace(memory={"trained": leaves(client.params)[0].new_zeros(())})

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Keep what the client ended its previous round with, and what came; a new client has only the latter."""
        received, _ = super().receive(client, broadcast)
        sent, own = ({"params": version.params, "buffers": version.buffers} for version in (received, client))
        return received, {"previous": where(client.memory["trained"] > 0, own, sent), "global": sent}

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add the contrast (eq. 3); the fraction is softplus of the difference, so nothing overflows."""
        output = network.train(params, buffers, batch.x, batch.mask)
        alike, unlike = (
            cosine_similarity(output.features, _target(network, round_state[model], batch), dim=1)
            for model in ("global", "previous")
        )
        # of pixels (B, h, w), an example's is the mean over them
        contrast = softplus((unlike - alike) / self.temperature).reshape(len(batch.x), -1).mean(1)
        return task.mean_loss(output, batch) + self.mu * masked_mean(contrast, batch.mask), output.buffers

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send the parameters, and note that from now on there is a previous model."""
        client, tensors = super().upload(client, round_state, stats)
        return client._replace(memory={"trained": torch.ones_like(client.memory["trained"])}), tensors


def _target(network: Network, model: Tree, batch: Batch) -> Tensor:
    # of a fixed model: no dropout in it, no prototype moved by it, and no gradient through it
    return network.evaluate(model["params"], model["buffers"], batch.x, batch.mask).features.detach()
