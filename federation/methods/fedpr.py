"""FedPR: FedAvg of parameters, with the features held near global class prototypes.

Y. Qiao, H. Q. Le, C. S. Hong: Boosting Federated Learning Convergence with Prototype Regularization, 2023,
arXiv 2307.10575: prototypes eq. 2, their mean eq. 3, local loss eq. 4, algorithm 1.

Differs from the paper's text, which calls the second term of eq. 4 'the ℓ2 distance'. Read as ‖e − P[y]‖₂
(`distance="norm"`) its gradient has length 1 however near the prototype is; in the paper's own setting that outweighs
the labels, and features collapse to the prototypes of the first rounds. Read as FedProto's squared error, the default
here, it weakens as features come near. That one is the mean over the D features; `distance="squared_sum"` is ‖e −
P[y]‖², D times as strong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from federation.aggregation import prototypes
from federation.aggregation.averaging import Accumulator, sums_of_changes
from federation.aggregation.prototypes import Distance, ModelAndPrototypeSums, PredictBy, PredictClasses
from federation.method import Method
from federation.plan import SecureSettings, TrainingConfig
from federation.records import (
    Batch,
    Broadcast,
    Client,
    Forward,
    Output,
    SumKind,
    Tensors,
    TrainingStats,
    Tree,
    Update,
    UploadGroup,
)
from federation.tasks.task import Task
from federation.training.forward import Network


@dataclass(frozen=True, kw_only=True)
class FedPr(Method):
    """CE + λ · mse(e, P[y]); w by FedAvg; P[c] = mean of p_k[c] over the clients that have c."""

    name: ClassVar[str] = "fedpr"
    sums_at: ClassVar[frozenset[str]] = frozenset({"after"})
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = {**Method.upload_groups, **prototypes.UPLOAD_GROUPS}

    sum_groups: ClassVar[Mapping[str, SumKind]] = {**Method.sum_groups, **prototypes.SUM_GROUPS}

    lam: float = 1.0  # λ
    distance: Distance = "squared"
    predict_by: PredictBy = "prototype"
    predict_classes: PredictClasses = "all"

    def __post_init__(self) -> None:
        """Refuse what only prediction by prototypes can do, too."""
        super().__post_init__()
        prototypes.check_prediction(self.name, self.predict_by, self.predict_classes)

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Make room for the prototypes that the client predicts with, and for its examples of each class."""
        return client._replace(memory=prototypes.client_memory(training, client.params))

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Take over the parameters, and remember the prototypes."""
        client, _ = super().receive(client, broadcast)
        return prototypes.remember(client, broadcast), prototypes.received(broadcast)

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add the distance to the prototype of each example's class (eq. 4)."""
        output = network.train(params, buffers, batch.x, batch.mask)
        distance = prototypes.mean_distance(task.labelled_features(output, batch), round_state, self.distance)
        return task.mean_loss(output, batch) + self.lam * distance, output.buffers

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send the parameters, p_k[c] and n_k[c]."""
        client, sent = prototypes.upload(client, stats)
        return client, {"params": client.params, **sent}

    @property
    def predicts_by_broadcast(self) -> bool:
        """By the prototypes."""
        return self.predict_by == "prototype"

    def refresh(self, client: Client, broadcast: Broadcast) -> Client:
        """Predict with newer prototypes."""
        return prototypes.remember(client, broadcast)

    def predict(self, forward: Forward, client: Client, x: Tensor, mask: Tensor | None = None) -> Output:
        """Take the nearest global prototype, or the head."""
        output = forward(client.params, client.buffers, x, mask)
        return prototypes.predict(output, client.memory, self.predict_by, self.predict_classes)

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Start from the initial model, and know no prototype."""
        return {"params": params, **prototypes.empty_prototypes(training, params)}

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> ModelAndPrototypeSums:
        """Add a client's parameters, and its prototypes."""
        before = ModelAndPrototypeSums.of(accumulator)
        sums = prototypes.fold(before.prototypes, update, by_examples=False)
        return replace(self.fold_params(before, update), prototypes=sums)

    def summand(self, update: Update, broadcast: Broadcast, limits: SecureSettings) -> Tree:
        """Add p_k[c] of the classes that the client has, and 1 for each of these."""
        return {
            **super().summand(update, broadcast, limits),
            **prototypes.summand(update, limits, by_examples=False),
        }

    def accumulated(self, state: Tree, total: Tree, clients: Sequence[str]) -> ModelAndPrototypeSums:
        """Return the sums of parameters and prototypes."""
        sums = sums_of_changes(self.broadcast(state, "")["params"], total)
        return ModelAndPrototypeSums(weight=sums.weight, params=sums.params, prototypes=prototypes.class_sums(total))

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Average both (eq. 3)."""
        sums = ModelAndPrototypeSums.of(accumulator)
        return {"params": self.combined(sums, state["params"]), **prototypes.finish(state, sums.prototypes)}
