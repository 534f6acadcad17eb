"""FedPR: FedAvg of parameters, with the features held near global class prototypes.

Y. Qiao, H. Q. Le, C. S. Hong: Boosting Federated Learning Convergence with Prototype Regularization, 2023,
arXiv 2307.10575: prototypes eq. 2, their mean eq. 3, local loss eq. 4, algorithm 1.

Differs from the paper's words, which call the pull of eq. 4 'the ℓ2 distance'. Read as ‖e − P[y]‖₂ (`distance="norm"`)
its gradient has length 1 however near the prototype is; in the paper's own setting that outweighs the labels, features
collapse and the global model stays at chance (docs/results.md). Read as FedProto's squared error, the default here, the
paper's faster convergence shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from federation.aggregation import prototypes
from federation.method import Method
from federation.methods.fedproto import FedProto
from federation.plan import TrainingConfig
from federation.records import Batch, Broadcast, Client, Output, Tensors, TrainingStats, Tree, Update
from federation.training.losses import masked_mean
from federation.tree import merge


@dataclass(frozen=True, kw_only=True)
class FedPr(FedProto):
    """CE + λ · mse(e, P[y]); w by FedAvg; P[c] = mean of p_k[c] over the clients that have c."""

    name: ClassVar[str] = "fedpr"
    has_global_model: ClassVar[bool] = True
    averages_parameters: ClassVar[bool] = True
    mixes_architectures: ClassVar[bool] = False
    weighs_prototypes: ClassVar[bool] = False
    """Whether P[c] is a mean by examples rather than by presence."""

    distance: Literal["squared", "norm"] = "squared"

    def shared(self, name: str) -> bool:
        """Share every parameter."""
        return True

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Remember the prototypes, and lay the parameters over the client."""
        client, known = super().receive(client, broadcast)
        return client._replace(params=merge(client.params, broadcast["params"])), known

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send the parameters, p_k[c] and n_k[c]."""
        client, tensors = super().upload(client, round_state, stats)
        return client, {"params": client.params, **tensors}

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Start from the initial model, and know no prototype."""
        return {"params": params, **super().server_init(params, buffers, training)}

    def fold(self, state: Tree, accumulator: Any, update: Update) -> Any:
        """Add a client's parameters, and its prototypes."""
        before = (accumulator or {}).get("prototypes")
        sums = prototypes.fold(before, update, by_examples=self.weighs_prototypes)
        return {**Method.fold(self, state, accumulator, update), "prototypes": sums}

    def finish(self, state: Tree, accumulator: Any) -> Tree:
        """Average both."""
        return {"params": self.combined(accumulator, state["params"]), **super().finish(state, accumulator)}

    def _regularization(self, output: Output, batch: Batch, round_state: Tree) -> Tensor:
        if self.distance == "squared":
            return super()._regularization(output, batch, round_state)
        squared = prototypes.squared_error(output.features, batch.y, round_state["prototypes"], round_state["known"])
        away = squared > 0  # at a distance of 0 the root has no gradient, and the pull none to give
        distance = torch.where(away, torch.where(away, squared, 1.0).sqrt(), 0.0)
        return masked_mean(distance, batch.mask)
