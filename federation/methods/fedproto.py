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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from federation.aggregation import prototypes
from federation.aggregation.averaging import Accumulator
from federation.aggregation.prototypes import PredictBy, PredictClasses, PrototypeSums
from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import (
    Batch,
    Broadcast,
    Client,
    Forward,
    Tensors,
    TrainingStats,
    Tree,
    Update,
    UploadGroup,
)
from federation.training.forward import Network
from federation.training.losses import cross_entropy


@dataclass(frozen=True, kw_only=True)
class FedProto(Method):
    """CE + λ · mse(e, P[y]); P[c] = Σ n_k[c] p_k[c] / Σ n_k[c]."""

    name: ClassVar[str] = "fedproto"
    has_global_model: ClassVar[bool] = False
    averages_parameters: ClassVar[bool] = False
    mixes_architectures: ClassVar[bool] = True
    class_stats_at: ClassVar[frozenset[str]] = frozenset({"after"})
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = prototypes.UPLOAD_GROUPS

    lam: float = 1.0  # λ
    predict_by: PredictBy = "prototype"
    predict_classes: PredictClasses = "all"

    def __post_init__(self) -> None:
        """Refuse what only prediction by prototypes can do, too."""
        super().__post_init__()
        prototypes.check_prediction(self.name, self.predict_by, self.predict_classes)

    def shared(self, name: str) -> bool:
        """Share no parameter."""
        return False

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Make room for the prototypes that the client predicts with, and for its examples of each class."""
        return client._replace(memory=prototypes.client_memory(training, client.params))

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Remember the global prototypes."""
        return prototypes.remember(client, broadcast), prototypes.received(broadcast)

    def loss(
        self, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add the distance to the prototype of each example's class (eq. 8)."""
        output = network.train(params, buffers, batch.x, batch.mask)
        distance = prototypes.mean_squared_error(output, batch, round_state)
        return cross_entropy(output, batch) + self.lam * distance, output.buffers

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send p_k[c] and n_k[c], measured with the trained model; keep the latter."""
        return prototypes.upload(client, stats.after)

    @property
    def predicts_by_broadcast(self) -> bool:
        """By the prototypes."""
        return self.predict_by == "prototype"

    def refresh(self, client: Client, broadcast: Broadcast) -> Client:
        """Predict with newer prototypes."""
        return prototypes.remember(client, broadcast)

    def predict(self, forward: Forward, client: Client, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Take the nearest global prototype (eq. 4), or the head."""
        output = forward(client.params, client.buffers, x, mask)
        return prototypes.predict(output, client.memory, self.predict_by, self.predict_classes)

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Know no prototype."""
        return prototypes.empty_prototypes(training, params)

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> PrototypeSums:
        """Add a client's prototypes."""
        before = PrototypeSums.of(accumulator)
        sums = prototypes.fold(before.prototypes, update, by_examples=self.weighting == "examples")
        return PrototypeSums(weight=before.weight + self.weight(update), prototypes=sums)

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Average them class by class (eq. 6)."""
        return prototypes.finish(state, PrototypeSums.of(accumulator).prototypes)
