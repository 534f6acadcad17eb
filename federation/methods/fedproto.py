"""FedProto: only class prototypes travel; clients may have different networks.

Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang, C. Zhang: FedProto: Federated Prototype Learning across Heterogeneous
Clients, AAAI 2022, arXiv 2105.00243: local loss eq. 7 and 8, aggregation eq. 6, prediction eq. 4, algorithm 1.
Not to be confused with Michieli and Ozay's FedProto, here `fedproto_margin`.

Differs from the paper: eq. 6 prints a factor 1/|N_j| that would shrink every prototype; it is left out.
`weighting="uniform"` is what the authors' code does. A client predicts with the prototypes that it received last: when
it is scored after a round, those which that round made. It looks among all classes, which a device that moves needs, or
with `predict_classes="own"`, as the authors' code does, among those that it had examples of when it last trained (among
all, if it never has; so does the server's model of `fedpr`); by its head while it knows no prototype of them.
The appendix multiplies λ with ‖e − P[y]‖², undivided: `distance="squared_sum"`. The default is its mean over the D
features, as in the authors' code, for which they report λ.

`backbone="frozen"` is not the paper's: nobody trains, neither network nor head. All clients have the network that the
server sends, with its initial weights or those of another federation, and each round they send the mean features of
their classes, which are averaged by eq. 6: the federated form of the nearest class mean classifier (T. Mensink,
J. Verbeek, F. Perronnin, G. Csurka: Distance-Based Image Classification: Generalizing to New Classes at Near-Zero Cost,
TPAMI 2013). A device that cannot train takes part with a forward pass. The term of eq. 7 that pulls features to
prototypes has nothing to move, and the server has a model for all: that network, with the linear head which answers
the nearest prototype.

`average_over` says whose prototypes eq. 6 averages. The paper and its code average those of the round's clients, who
are all clients there (algorithm 1): `round`, the default. `clients`, ours and the default with a frozen backbone, keeps
what each client has sent last on the server: a round of one client does not replace what all before it have sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from federation.aggregation import kept_prototypes, prototypes
from federation.aggregation.averaging import Accumulator
from federation.aggregation.kept_prototypes import KeptUploads
from federation.aggregation.prototypes import Distance, PredictBy, PredictClasses, PrototypeSums
from federation.errors import SettingsError
from federation.method import Method
from federation.plan import SecureSettings, TrainingConfig
from federation.records import (
    Batch,
    Broadcast,
    Client,
    Forward,
    Output,
    Phase,
    SumKind,
    Tensors,
    TrainingStats,
    Tree,
    Update,
    UploadGroup,
)
from federation.records.head import check_dense
from federation.tasks.task import Task
from federation.training.forward import Network

_LAM = 1.0


@dataclass(frozen=True, kw_only=True)
class FedProto(Method):
    """CE + λ · mse(e, P[y]); P[c] = Σ n_k[c] p_k[c] / Σ n_k[c]."""

    name: ClassVar[str] = "fedproto"
    averages_parameters: ClassVar[bool] = False
    sums_at: ClassVar[frozenset[str]] = frozenset({"after"})
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = prototypes.UPLOAD_GROUPS
    sum_groups: ClassVar[Mapping[str, SumKind]] = prototypes.SUM_GROUPS

    lam: float = _LAM  # λ
    distance: Distance = "squared"
    predict_by: PredictBy = "prototype"
    predict_classes: PredictClasses = "all"
    backbone: Literal["trained", "frozen"] = "trained"
    average_over: Literal["auto", "round", "clients"] = "auto"  # auto: clients with a frozen backbone, else round

    def __post_init__(self) -> None:
        """Refuse what only prediction by prototypes can do, and what only training can, too."""
        super().__post_init__()
        prototypes.check_prediction(self.name, self.predict_by, self.predict_classes)
        if self.is_frozen and self.predict_by == "head":
            raise SettingsError(
                f"{self.name}: backbone=frozen trains no head, but predict_by=head: set predict_by=prototype"
            )
        if self.is_frozen and (self.lam != _LAM or self.distance != "squared"):
            raise SettingsError(
                f"{self.name}: backbone=frozen doesn't train, so lam={self.lam:g} and distance have no effect: leave "
                f"lam at {_LAM:g}, and distance at squared"
            )

    @property
    def is_frozen(self) -> bool:
        """Whether nobody trains."""
        return self.backbone == "frozen"

    @property
    def keeps_uploads(self) -> bool:
        """Whether the server averages what every client has sent last."""
        return self.average_over == "clients" or (self.average_over == "auto" and self.is_frozen)

    @property
    def has_global_model(self) -> bool:
        """The frozen network with the head that answers the nearest prototype; trained, every client has its own."""
        return self.is_frozen

    @property
    def mixes_architectures(self) -> bool:
        """Only prototypes travel; a frozen network travels too."""
        return not self.is_frozen

    @property
    def solves_heads(self) -> bool:
        """Whether a head answers the nearest prototype: that of a frozen network does."""
        return self.is_frozen

    def shared(self, name: str) -> bool:
        """Share no parameter but those of a frozen network, which the server sends."""
        return self.is_frozen

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Make room for the prototypes that the client predicts with, and for its examples of each class."""
        return client._replace(memory=prototypes.client_memory(training, client.params))

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Remember the global prototypes, and take over a frozen network."""
        if self.is_frozen:
            client, _ = super().receive(client, broadcast)
        return prototypes.remember(client, broadcast), prototypes.received(broadcast)

    def phases(self, training: TrainingConfig) -> tuple[Phase, ...]:
        """Train everything, or nothing."""
        return () if self.is_frozen else super().phases(training)

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add the distance to the prototype of each example's class (eq. 8)."""
        output = network.train(params, buffers, batch.x, batch.mask)
        distance = prototypes.mean_distance(task.labelled_features(output, batch), round_state, self.distance)
        return task.mean_loss(output, batch) + self.lam * distance, output.buffers

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send p_k[c] and n_k[c], measured with the trained model; keep the latter."""
        return prototypes.upload(client, stats)

    def delta_reference(self, broadcast: Broadcast) -> Tree:
        """Take no prototypes over: they are measured in each round."""
        return {}

    def serving_model(self, client: Client) -> Client:
        """Return the client's model; of a frozen network one whose head answers the nearest prototype (eq. 4)."""
        return prototypes.with_nearest_head(client, self.predict_classes) if self.is_frozen else client

    @property
    def predicts_by_broadcast(self) -> bool:
        """By the prototypes."""
        return self.predict_by == "prototype"

    def refresh(self, client: Client, broadcast: Broadcast) -> Client:
        """Predict with newer prototypes."""
        return prototypes.remember(client, broadcast)

    def predict(self, forward: Forward, client: Client, x: Tensor, mask: Tensor | None = None) -> Output:
        """Take the nearest global prototype (eq. 4), or the head."""
        if self.is_frozen:
            return super().predict(forward, client, x, mask)
        output = forward(client.params, client.buffers, x, mask)
        return prototypes.predict(output, client.memory, self.predict_by, self.predict_classes)

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Know no prototype; send the network, if it is frozen."""
        empty = prototypes.empty_prototypes(training, params)
        if not self.is_frozen:
            return empty
        check_dense(params, training.classes, f"{self.name} with backbone=frozen")
        return {"params": params, **empty}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Send all but what single clients have sent."""
        return {name: value for name, value in state.items() if name != kept_prototypes.CLIENTS}

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> PrototypeSums:
        """Add a client's prototypes."""
        if self.keeps_uploads:
            return kept_prototypes.fold(accumulator, update, self.weight(update))
        before = PrototypeSums.of(accumulator)
        sums = prototypes.fold(before.prototypes, update, by_examples=self.weighting == "examples")
        return PrototypeSums(weight=before.weight + self.weight(update), prototypes=sums)

    @property
    def sum_incompatibility(self) -> str | None:
        """Refuse to keep what single clients have sent, too."""
        if self.keeps_uploads:
            return (
                f"the method {self.name} stores each client's latest prototypes: set average_over=round, which only "
                f"needs a round's sum"
            )
        return super().sum_incompatibility

    def summand(self, update: Update, broadcast: Broadcast, limits: SecureSettings) -> Tree:
        """Return n_k[c] · p_k[c] and n_k[c], or 1 for each class that the client has."""
        return prototypes.summand(update, limits, by_examples=self.weighting == "examples")

    def accumulated(self, state: Tree, total: Tree, clients: Sequence[str]) -> PrototypeSums:
        """Return the sums of prototypes."""
        return PrototypeSums(weight=float(len(clients)), prototypes=prototypes.class_sums(total))

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Average them class by class (eq. 6); a frozen network stays."""
        if self.keeps_uploads:
            by_examples = self.weighting == "examples"
            return kept_prototypes.finish(state, KeptUploads.of(accumulator).uploads, by_examples=by_examples)
        return {**state, **prototypes.finish(state, PrototypeSums.of(accumulator).prototypes)}

    def forget_clients(self, state: Tree, clients: Collection[str]) -> Tree:
        """Drop these clients' latest prototypes, and average the others' again."""
        return kept_prototypes.forget(state, clients, by_examples=self.weighting == "examples")
