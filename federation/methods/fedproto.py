"""FedProto: only class prototypes travel; clients may have different networks.

Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang, C. Zhang: FedProto: Federated Prototype Learning across Heterogeneous
Clients, AAAI 2022, arXiv 2105.00243: local loss eq. 7 and 8, aggregation eq. 6, prediction eq. 4, algorithm 1.
Not to be confused with Michieli and Ozay's FedProto, here `fedproto_margin`.

Differs from the paper: eq. 6 prints a factor 1/|N_j| that would shrink every prototype; it is left out.
`weighting="uniform"` is what the authors' code does. A client predicts with the prototypes that it received last: when
it is scored after a round, those which that round made. It looks among all classes, which a device that moves needs, or
with `predict_classes="own"`, as the authors' code does, among those that it had examples of when it last trained (among
all, if it never has; so does the server's model of `fedpr`); by its head while it knows no prototype of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from federation.aggregation import prototypes
from federation.errors import SettingsError
from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Batch, Broadcast, Client, Forward, Output, Tensors, TrainingStats, Tree, Update
from federation.training.forward import Network
from federation.training.losses import cross_entropy, masked_mean


@dataclass(frozen=True, kw_only=True)
class FedProto(Method):
    """CE + λ · mse(e, P[y]); P[c] = Σ n_k[c] p_k[c] / Σ n_k[c]."""

    name: ClassVar[str] = "fedproto"
    has_global_model: ClassVar[bool] = False
    averages_parameters: ClassVar[bool] = False
    mixes_architectures: ClassVar[bool] = True
    class_stats_at: ClassVar[frozenset[str]] = frozenset({"after"})

    lam: float = 1.0  # λ
    predict_by: Literal["prototype", "head"] = "prototype"
    predict_classes: Literal["all", "own"] = "all"

    def __post_init__(self) -> None:
        """Refuse what only prediction by prototypes can do, too.

        Raises:
            SettingsError: naming the option.
        """
        super().__post_init__()
        if self.predict_classes == "own" and self.predict_by == "head":
            raise SettingsError(
                f"{self.name}: predict_classes=own chooses among prototypes, but predict_by=head: "
                "set predict_by=prototype, or leave predict_classes at all"
            )

    def shared(self, name: str) -> bool:
        """Share no parameter."""
        return False

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Make room for the prototypes that the client predicts with, and for its examples of each class."""
        empty = prototypes.empty_prototypes(training, client.params)
        return client._replace(memory={**empty, "counts": torch.zeros_like(empty["known"])})

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Remember the global prototypes."""
        return self.refresh(client, broadcast), {name: broadcast[name] for name in ("prototypes", "known")}

    def loss(
        self, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add the pull towards the prototype of each example's class (eq. 8)."""
        output = network.train(params, buffers, batch.x, batch.mask)
        return cross_entropy(output, batch) + self.lam * self._regularization(
            output, batch, round_state
        ), output.buffers

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send p_k[c] and n_k[c], measured with the trained model; keep the latter."""
        sent = prototypes.uploaded(stats.after)
        return client._replace(memory={**client.memory, "counts": sent["counts"]}), sent

    @property
    def predicts_by_broadcast(self) -> bool:
        """By the prototypes."""
        return self.predict_by == "prototype"

    def refresh(self, client: Client, broadcast: Broadcast) -> Client:
        """Predict with newer prototypes."""
        newer = {name: broadcast[name] for name in ("prototypes", "known")}
        return client._replace(memory={**client.memory, **newer})

    def predict(self, forward: Forward, client: Client, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Take the nearest global prototype (eq. 4), or the head."""
        output = forward(client.params, client.buffers, x, mask)
        if self.predict_by == "head":
            return output.logits
        memory = client.memory
        among = memory["known"] * self._candidates(memory["counts"])
        return prototypes.nearest(output.features, memory["prototypes"], among, output.logits)

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Know no prototype."""
        return prototypes.empty_prototypes(training, params)

    def fold(self, state: Tree, accumulator: Any, update: Update) -> Any:
        """Add a client's prototypes."""
        before = accumulator or {"weight": 0.0, "prototypes": None}
        sums = prototypes.fold(before["prototypes"], update, by_examples=self.weighting == "examples")
        return {"weight": before["weight"] + self.weight(update), "prototypes": sums}

    def finish(self, state: Tree, accumulator: Any) -> Tree:
        """Average them class by class (eq. 6)."""
        return prototypes.finish(state, accumulator["prototypes"])

    def _candidates(self, counts: Tensor) -> Tensor:
        """Mark (C,) the classes that a client with so many examples of each chooses among."""
        if self.predict_classes == "all":
            return torch.ones_like(counts)
        return ((counts > 0) | (counts.sum() == 0)).to(counts.dtype)

    def _regularization(self, output: Output, batch: Batch, round_state: Tree) -> Tensor:
        squared = prototypes.squared_error(output.features, batch.y, round_state["prototypes"], round_state["known"])
        return masked_mean(squared / output.features.shape[-1], batch.mask)
