"""The interface of a federated method; the base class is FedAvg's weighted mean of all parameters.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017, arXiv 1602.05629 (algorithm 1).

The client half is pure functions of tensors without a branch on a tensor's value, so that `torch.func.vmap` can lift
them over clients. The server half is pure functions of the server's state, a tree of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from federation.aggregation import robust
from federation.aggregation.averaging import Accumulator, MeanSums, add_weighted, mean_of
from federation.aggregation.class_statistics import class_stats, empty_class_stats
from federation.aggregation.screening import UpdateClaim
from federation.errors import RoundError, SettingsError
from federation.plan import SecureSettings, TrainingConfig
from federation.records import (
    Batch,
    Broadcast,
    Client,
    ExampleSums,
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
from federation.records.tree import merge, select
from federation.tasks.task import Task
from federation.training.forward import Network

Sums = TypeVar("Sums", bound=MeanSums)
Weights = dict[str, dict[str, float]]
"""Of each client (the inner key), by kind or by parameter tensor (the outer one)."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: its fields are its hyper-parameters, so it prints, compares and travels as JSON."""

    name: ClassVar[str]
    sums_at: ClassVar[frozenset[str]] = frozenset()
    """When the client sums over its examples (`add_sums`): "before" and/or "after" training."""
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = {"params": UploadGroup.CHANGE}
    """The groups of tensors that a client sends, and what each is."""
    requires_alp: ClassVar[bool] = False
    """Whether the model must have ALP layers, whose buffers the method shares."""
    averages_parameters: ClassVar[bool] = True
    """Whether the server takes one weighted mean of parameters, which `aggregation` may replace."""
    robust_rules: ClassVar[frozenset[robust.Rule]] = frozenset({"median", "trimmed_mean", "krum"})
    """What `aggregation` may be beside the mean, where there is one."""
    personal_broadcast: ClassVar[bool] = False
    """Whether clients receive different things, so that a broadcast must be asked for by the client's id."""
    uses_partial_work: ClassVar[bool] = False
    """Whether what a straggler did is aggregated unless the round's settings say otherwise."""
    is_continuous: ClassVar[bool] = False
    """Whether a live federation has no cohorts and deadlines: a client's update replaces its last one at any time."""
    pools_data: ClassVar[bool] = False
    """Whether it trains on everybody's examples in one place, which only a simulation can."""
    sum_groups: ClassVar[Mapping[str, SumKind]] = {"params": SumKind.WEIGHTED_CHANGE, "weight": SumKind.COUNT}
    """What the clients' `summand`s consist of: the server half needs their sum, and no single one."""
    needs_single_updates: ClassVar[str] = "combines updates in its own way, and does not say what of them adds up"
    """Why there is no such sum, of a method that overrides `fold` or `aggregate` and no `summand` with them."""
    default_optimizer: ClassVar[Literal["adam", "sgd"] | None] = None
    """What a run starts with where nobody says anything else, if the method does not work with every optimizer."""
    default_lr: ClassVar[float | None] = None
    """The learning rate to that optimizer."""

    weighting: Literal["examples", "uniform"] = "examples"
    aggregation: robust.Rule = "mean"
    trim: float = 0.1
    byzantine: int = 1

    def __post_init__(self) -> None:
        """Refuse a robust rule where there is no mean to replace.

        Raises:
            SettingsError: naming the option.
        """
        if self.aggregation != "mean" and not (self.averages_parameters or self.is_continuous):
            raise SettingsError(
                f"{self.name} has no mean of parameters that aggregation={self.aggregation} could replace"
            )
        if self.aggregation != "mean" and self.aggregation not in self.robust_rules:
            known = ", ".join(sorted(self.robust_rules))
            raise SettingsError(f"{self.name}: aggregation={self.aggregation}: expected mean, {known}")
        if not 0 <= self.trim < 0.5 or self.byzantine < 0:
            raise SettingsError(
                f"trim={self.trim}, byzantine={self.byzantine}: expected 0 <= trim < 0.5 and byzantine >= 0"
            )

    @property
    def has_global_model(self) -> bool:
        """Whether the server has one model for all."""
        return True

    @property
    def keeps_uploads(self) -> bool:
        """Whether the server's state has what single clients sent last, under their names: see `forget_clients`."""
        return False

    @property
    def rotated_copies(self) -> int:
        """How many copies of each window, turned at random, a client sums over besides the window itself."""
        return 0

    @property
    def rotation_degrees(self) -> float:
        """By how many degrees these copies are turned at most; 180: by any rotation."""
        return 180.0

    @property
    def copies_with_sensor_loss(self) -> bool:
        """Whether it sums over one more copy of each window, whose second sensor reads nothing."""
        return False

    @property
    def solves_heads(self) -> bool:
        """Whether it makes heads of features, so that these must be what enters a head."""
        return False

    def features_incompatibility(self, features_at: str) -> str | None:
        """Say why it can't use features that a network takes at that place, and what to do; None where it can."""
        if features_at == "head" or not self.solves_heads:
            return None
        return (
            f"the method {self.name} makes heads of features, so these must be what enters the head, and the model's "
            f"option features_at is {features_at}; leave it out"
        )

    @property
    def mixes_architectures(self) -> bool:
        """Whether clients of one federation may have different networks, as long as their features agree."""
        return False

    def trains(self, training: TrainingConfig) -> bool:
        """Whether a client takes steps at all, and does not only measure its examples."""
        return bool(self.phases(training))

    def task_incompatibility(self, task: Task) -> str | None:
        """Say in words why the method cannot learn a task, and what to do about it; None where it can."""
        if self.sums_at and not task.has_classes:
            return (
                f"the method {self.name} takes prototypes of classes, and the task {task.name} has no classes; "
                "use a method that shares parameters alone, such as fedavg"
            )
        return None

    @property
    def program_incompatibility(self) -> str | None:
        """Say in words why a device cannot run the client half as graphs of operators; None where it can.

        It can where the client's hooks are pure functions of tensors by operators that ONNX has (`export.program`).
        """
        if self.pools_data:
            return f"the method {self.name} trains on everybody's examples in one place, which no device has"
        return None

    @property
    def sum_incompatibility(self) -> str | None:
        """Say in words why the server half needs more than a sum of the clients' `summand`s; None where it does not."""
        if self.aggregation != "mean":
            return (
                f"aggregation={self.aggregation} must see every client's parameters, and a secure sum shows none; it "
                "can combine the sums of random groups, by secure.groups of 3 or more"
            )
        order = type(self).__mro__

        def place(name: str) -> int:
            return next(at for at, kind in enumerate(order) if name in vars(kind))

        if self.pools_data or place("summand") > min(place("fold"), place("aggregate")):
            return f"the method {self.name} {self.needs_single_updates}"
        return None

    # ---- client half

    def shared(self, name: str) -> bool:
        """Whether the parameter of that name travels."""
        return True

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Give a client that has not taken part in anything yet what the method keeps on it between rounds."""
        return client

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Lay what came from the server over the client; return it and what the round's loss needs."""
        return client._replace(params=merge(client.params, broadcast["params"])), {}

    def phases(self, training: TrainingConfig) -> tuple[Phase, ...]:
        """Say which parameters train, and for how many epochs, one stretch after the other."""
        return (Phase(lambda name: True, training.epochs),)

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Return the scalar to minimize, of `network.train`, and the buffers that this moved.

        `network.evaluate` serves for what is only compared with: no dropout, and nothing moves.
        """
        output = network.train(params, buffers, batch.x, batch.mask)
        return task.mean_loss(output, batch), output.buffers

    def project(self, params: Tensors) -> Tensors:
        """Return what a step made of the trained parameters, moved back to where they may be."""
        return params

    def empty_sums(self, training: TrainingConfig, like: Tensor, clients: tuple[int, ...] = ()) -> ExampleSums:
        """Return the sums of no example, where the tensor `like` is; with a first dimension where clients are stacked.

        Sums are any NamedTuple of tensors that add over batches; here those of features by class.
        """
        return empty_class_stats(training, like, clients)

    def add_sums(
        self, task: Task, training: TrainingConfig, output: Output, batch: Batch, before: ExampleSums
    ) -> ExampleSums:
        """Add a batch, of which the network gave `output` in evaluation, to the sums before; padding adds nothing."""
        return class_stats(task.labelled_features(output, batch), training.classes, before)

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Return the client as it is kept, and the tree that travels."""
        return client, {"params": select(client.params, self.shared)}

    def summand(self, update: Update, broadcast: Broadcast, limits: SecureSettings) -> Tree:
        """Return what the client adds to the sum of all, in float64: n · (w_k − w), cut off at the limits, and n.

        `update` is the client's own, with what it replaces; groups are those of `sum_groups`.
        """
        weight = min(round(self.weight(update)), limits.max_weight)
        start = broadcast["params"]
        changes = {
            name: (value.double() - start[name].double()).clamp(-limits.max_change, limits.max_change) * weight
            for name, value in update.tensors["params"].items()
        }
        return {"params": changes, "weight": torch.tensor(float(weight), dtype=torch.float64)}

    def implausibility(self, upload: Tree, examples: int, training: TrainingConfig) -> str:
        """Say why no client with so many examples can have made an upload that fits the schema; empty if one can."""
        return ""

    def sum_implausibility(self, total: Tree, clients: int, deviation: float) -> str:
        """Say why no so many clients can have added up to this; empty if they can.

        deviation: of the noise that each number has, in whole numbers.
        """
        return ""

    def delta_reference(self, broadcast: Broadcast) -> Tree:
        """Return where those tensors of an upload started that each round moves on from what the server sent.

        A lossy wire sends their change, and keeps what it lost of it for the next one (`federation.wire.quantization`).
        """
        return {"params": broadcast.get("params", {})}

    @property
    def predicts_by_broadcast(self) -> bool:
        """Whether `refresh` changes what a client predicts, so that all are scored anew when the server has moved."""
        return False

    def refresh(self, client: Client, broadcast: Broadcast) -> Client:
        """Return the client with what it predicts by taken from a newer broadcast; its own model stays as it is.

        A client is scored after a round with what that round made of the server's state. It trains, and is kept,
        without: it receives the same at the beginning of its next round.
        """
        return client

    def serving_model(self, client: Client) -> Client:
        """Return the client reduced to the one network that it serves with."""
        return client

    def serving_models(self, client: Client) -> dict[str, Client]:
        """Return by name all networks that the client could serve with; `personalized` is `serving_model`'s."""
        return {"personalized": self.serving_model(client)}

    def adapted_model(self, client: Client, broadcast: Broadcast, features: Tensor, *, is_far: bool) -> Client | None:
        """Return what serves a client that has no label, adapted to its own windows' features (n, D).

        is_far: whether the client lies otherwise than most. None: it serves with what came.
        """
        return None

    def predict(self, forward: Forward, client: Client, x: Tensor, mask: Tensor | None = None) -> Output:
        """Return the network's output for x (B, ...); its logits are the method's scores, larger is likelier."""
        served = self.serving_model(client)
        return forward(served.params, served.buffers, x, mask)

    # ---- server half

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Make the server's state from the initial model."""
        return {"params": select(params, self.shared)}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Return what a client gets; the same for every client here."""
        return state

    def global_model(self, client: Client, broadcast: Broadcast) -> Client:
        """Return a client that serves with the server's model; only asked where `has_global_model`."""
        return self.receive(client, broadcast)[0]

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> Accumulator:
        """Add one update to a running sum (None at first), so that memory does not grow with clients."""
        return self.fold_params(MeanSums.of(accumulator), update)

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Turn the running sum into the next state."""
        return {**state, "params": self.combined(MeanSums.of(accumulator), state["params"])}

    def accumulated(self, state: Tree, total: Tree, clients: Sequence[str]) -> Accumulator:
        """Return what `finish` takes, of the sum of these clients' summands alone."""
        return self.accumulated_params(state, total)

    def accumulated_params(self, state: Tree, total: Tree) -> MeanSums:
        """Return the sums of parameters: W · w + Σ n_k · (w_k − w)."""
        weight, start = float(total["weight"]), self.broadcast(state, "")["params"]
        params = {name: start[name].double() * weight + value for name, value in total["params"].items()}
        return MeanSums(weight=weight, params=params)

    def fold_params(self, before: Sums, update: Update) -> Sums:
        """Add an update's weight and parameters to any accumulator that has room for them."""
        weight, mine = self.weight(update), update.tensors["params"]
        total = before.weight + weight
        if self.aggregation == "mean":
            return replace(before, weight=total, params=add_weighted(before.params, mine, weight))
        return replace(before, weight=total, clients=(*before.clients, mine))

    def combined(self, sums: MeanSums, like: Tensors) -> Tensors:
        """Return the mean of the folded parameters, or what the robust rule makes of them."""
        if self.aggregation == "mean":
            return mean_of(sums.params, sums.weight, like)
        return robust.combine(self.aggregation, sums.clients, trim=self.trim, byzantine=self.byzantine)

    def aggregate(self, state: Tree, updates: Iterable[Update]) -> Tree:
        """Combine a round's updates, w ← Σ n_k/Σn_j · w_k here; pass them sorted by client id.

        Raises:
            RoundError: if there is no update, or none has weight.
        """
        accumulator: Accumulator | None = None
        for update in updates:
            accumulator = self.fold(state, accumulator, update)
        if accumulator is None or not accumulator.weight > 0:
            raise RoundError("a round needs at least one update with examples to aggregate; none came")
        return self.finish(state, accumulator)

    # ---- of a continuous method: what its clients have in the state (`federation.aggregation.present_sums`)

    def without_contributions(self, state: Tree) -> Tree:
        """Return the state as it is when nobody has anything in it."""
        return state

    def contribution_claim(self, update: Update) -> UpdateClaim:
        """Return what a client's part is held against the others' by: its weight, as a whole number, and norms."""
        return UpdateClaim(0, {})

    def capped_contribution(self, update: Update, weight: int) -> Update:
        """Return an update whose part has so much weight, where it has more."""
        return update

    def chosen_contributions(self, clients: Sequence[str], read: Callable[[str], Update], seed: int) -> Sequence[str]:
        """Return the clients whose parts `aggregation` uses, in the same order; `seed` is the plan's."""
        return clients

    def forget_clients(self, state: Tree, clients: Collection[str]) -> Tree:
        """Return the state without what it keeps of single clients under their names, as far as that can be taken out.

        The same state where nothing of them is kept.
        """
        return state

    def weight(self, update: Update) -> float:
        """Weight of an update in the mean; a stale one counts less."""
        return (update.examples if self.weighting == "examples" else 1.0) * update.discount

    # ---- for reports

    def client_weights(self, state: Tree, updates: Sequence[Update]) -> Weights:
        """Return by kind how much each client weighs in the aggregate, each kind's sum 1; {} if `weight` says it."""
        return {}

    def layer_weights(self, state: Tree, updates: Sequence[Update]) -> Weights:
        """Return the same by parameter tensor, for a method that weighs clients in each of them apart."""
        return {}

    # ---- for those who ask what an upload looks like

    def empty_training_stats(self, training: TrainingConfig, like: Tensor) -> TrainingStats:
        """Return what a round of one client measures that has no examples and has not trained."""
        empty = self.empty_sums(training, like)
        return TrainingStats(empty, empty, like.new_zeros(()))
