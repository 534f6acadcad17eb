"""MOON: contrast the features with those of the received model (alike) and of the own previous model (unlike).

Q. Li, B. He, D. Song: Model-Contrastive Federated Learning, CVPR 2021, arXiv 2103.16257, equations 3 and 4.

Differs from the paper: the contrast is taken on the features that enter the head, without an extra projection head,
so that every model of the table can be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from federation.losses import cross_entropy, masked_mean
from federation.method import Method
from federation.records import Batch, Broadcast, Client, Forward, Tensors, Tree


@dataclass(frozen=True, kw_only=True)
class Moon(Method):
    """CE + μ·ℓ, ℓ = −log( e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ}) )."""

    name: ClassVar[str] = "moon"

    mu: float = 1.0
    temperature: float = 0.5

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Keep what the client ended its previous round with, and what came; a new client has only the latter."""
        received, _ = super().receive(client, broadcast)
        previous = {"params": client.params, "buffers": client.buffers}
        return received, {"previous": previous, "global": {"params": received.params, "buffers": received.buffers}}

    def loss(
        self, forward: Forward, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add the contrast (eq. 3); the fraction is softplus of the difference, so nothing overflows."""
        output = forward(params, buffers, batch.x, batch.mask)
        alike = cosine_similarity(output.features, _features(forward, round_state["global"], batch), dim=-1)
        unlike = cosine_similarity(output.features, _features(forward, round_state["previous"], batch), dim=-1)
        contrast = masked_mean(softplus((unlike - alike) / self.temperature), batch.mask)
        return cross_entropy(output, batch) + self.mu * contrast, output.buffers


def _features(forward: Forward, model: Tree, batch: Batch) -> Tensor:
    return forward(model["params"], model["buffers"], batch.x, batch.mask).features.detach()
