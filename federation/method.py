"""The interfaces of federated methods: `Method` trains parameters in rounds, `SumMethod` adds up sums over examples.

The base class is FedAvg's weighted mean of all parameters.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017, arXiv 1602.05629 (algorithm 1).

The client half is pure functions of tensors without a branch on a tensor's value, so that `torch.func.vmap` can lift
them over clients. The server half is pure functions of the server's state, a tree of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from federation.aggregation import robust
from federation.aggregation.averaging import (
    Accumulator,
    MeanSums,
    SumChanges,
    add_weighted,
    mean_of,
    sums_of_changes,
)
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
from federation.records.tree import map_tree, merge, select
from federation.rounds.serving import PERSONALIZED, SHARED_HEAD
from federation.tasks.task import Task
from federation.training.forward import Network
from federation.training.schedule import WindowCopies

Sums = TypeVar("Sums", bound=MeanSums)
Weights = dict[str, dict[str, float]]
"""Of each client (the inner key), by kind or by parameter tensor (the outer one)."""


class Traits(NamedTuple):
    """A method's special requirements; most methods have none."""

    requires_alp: bool = False
    """Whether the model must have ALP layers, whose buffers the method shares."""
    personal_broadcast: bool = False
    """Whether clients get different broadcasts, which must be requested by client id."""
    uses_partial_work: bool = False
    """Whether stragglers' partial work is aggregated by default."""
    pools_data: bool = False
    """Whether it trains on everyone's examples in one place, which only a simulation can do."""
    optimizer: Literal["adam", "sgd"] | None = None
    """What a run starts with unless its settings say otherwise, of a method that doesn't work with every optimizer."""
    lr: float | None = None
    """The learning rate to that optimizer."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: its fields are its hyper-parameters, so it prints, compares and travels as JSON."""

    name: ClassVar[str]
    sums_at: ClassVar[frozenset[str]] = frozenset()
    """When the client sums over its examples (`add_sums`): "before" and/or "after" training."""
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = {"params": UploadGroup.CHANGE}
    """The groups of tensors that a client sends, and what each is."""
    traits: ClassVar[Traits] = Traits()
    """What few methods ask of model, broadcast, stragglers, data and optimizer."""
    averages_parameters: ClassVar[bool] = True
    """Whether the server takes one weighted mean of parameters, which `aggregation` may replace."""
    sum_groups: ClassVar[Mapping[str, SumKind]] = {"params": SumKind.WEIGHTED_CHANGE, "weight": SumKind.COUNT}
    """What the clients' `summand`s consist of: the server half needs their sum, and no single one."""
    needs_single_updates: ClassVar[str] = "combines updates in its own way, and doesn't define what adds up"
    """Why there is no such sum, of a method that overrides `fold` or `aggregate` and no `summand` with them."""
    weighting: Literal["examples", "uniform"] = "examples"
    aggregation: robust.Rule = "mean"
    trim: float = 0.1
    byzantine: int = 1

    def __init_subclass__(cls) -> None:
        """Reject a trait that is set on the class, where nothing reads it.

        Raises:
            TypeError: naming it, and where it belongs.
        """
        for name in ("requires_alp", "personal_broadcast", "uses_partial_work", "pools_data"):
            if name in vars(cls):
                write = f"traits = Traits({name}={vars(cls)[name]!r})"
                raise TypeError(f"{cls.__name__} sets {name}: write {write} instead")

    def __post_init__(self) -> None:
        """Refuse a robust rule where there is no mean to replace.

        Raises:
            SettingsError: naming the option.
        """
        if self.aggregation != "mean" and not self.averages_parameters:
            raise SettingsError(
                f"{self.name} doesn't average parameters, so aggregation={self.aggregation} doesn't apply"
            )
        _check_rule(self, get_args(robust.Rule))

    @property
    def has_global_model(self) -> bool:
        """Whether the server has one model for all."""
        return True

    @property
    def keeps_uploads(self) -> bool:
        """Whether the server's state has what single clients sent last, under their names: see `forget_clients`."""
        return False

    @property
    def solves_heads(self) -> bool:
        """Whether it makes heads of features, so that these must be what enters a head."""
        return False

    @property
    def mixes_architectures(self) -> bool:
        """Whether clients of one federation may have different networks, as long as their features agree."""
        return False

    def task_incompatibility(self, task: Task) -> str | None:
        """Say why the method cannot learn a task, and what to do about it; None if it can."""
        if self.sums_at and not task.has_classes:
            return (
                f"the method {self.name} uses class prototypes, but the task {task.name} has no classes; use a method "
                f"that shares only parameters, such as fedavg"
            )
        return None

    @property
    def program_incompatibility(self) -> str | None:
        """Say in words why a device cannot run the client half as graphs of operators; None if it can.

        It can where the client's hooks are pure functions of tensors by operators that ONNX has (`export.program`).
        """
        if self.traits.pools_data:
            return f"the method {self.name} trains on everyone's examples in one place, which no device has"
        return None

    @property
    def sum_incompatibility(self) -> str | None:
        """Say why the server half needs more than a sum of the clients' `summand`s; None where it does not."""
        if self.aggregation != "mean":
            return (
                f"aggregation={self.aggregation} needs every client's parameters, which a secure sum hides; to "
                f"combine the sums of random groups, set secure.groups to 3 or more"
            )
        order = type(self).__mro__

        def place(name: str) -> int:
            return next(at for at, kind in enumerate(order) if name in vars(kind))

        if self.traits.pools_data or place("summand") > min(place("fold"), place("aggregate")):
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
        """Apply the server's broadcast to the client; return it and what the round's loss needs."""
        return client._replace(params=merge(client.params, broadcast["params"])), {}

    def phases(self, training: TrainingConfig) -> tuple[Phase, ...]:
        """Return the phases of training: which parameters train, and for how many epochs."""
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

    def delta_reference(self, broadcast: Broadcast) -> Tree:
        """Return where those tensors of an upload started that each round moves on from what the server sent.

        A lossy wire sends their change, and keeps what it lost of it for the next one (`federation.wire.quantization`).
        """
        return {"params": broadcast.get("params", {})}

    @property
    def predicts_by_broadcast(self) -> bool:
        """Whether `refresh` changes a client's predictions, so that all are scored again after a server update."""
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
        return sums_of_changes(self.broadcast(state, "")["params"], total)

    def fold_params(self, before: Sums, update: Update) -> Sums:
        """Add an update's weight and parameters to any accumulator that has room for them."""
        weight, params = self.weight(update), update.tensors["params"]
        total = before.weight + weight
        if self.aggregation == "mean":
            return replace(before, weight=total, params=add_weighted(before.params, params, weight))
        return replace(before, weight=total, clients=(*before.clients, params))

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
            raise RoundError("a round needs at least one update with examples to aggregate; got none")
        return self.finish(state, accumulator)

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


@dataclass(frozen=True, kw_only=True)
class SumMethod(Method):
    """A method whose clients upload sums over their examples, which add up; nobody trains.

    The state's group `sums` has what all clients' uploads add up to, and under `clients` how many these are. A client's
    upload replaces its last one (`Update.replaces`), which whoever drives the method has kept: so a client joins by an
    addition, sends again without counting twice, and leaves exactly by a subtraction. Sums are whole numbers, so that
    the order doesn't matter. A live federation has no cohorts and deadlines: uploads come at any time.
    """

    averages_parameters: ClassVar[bool] = False
    sums_at: ClassVar[frozenset[str]] = frozenset({"after"})

    def __post_init__(self) -> None:
        """Refuse a rule that sums can't follow.

        Raises:
            SettingsError: naming the option.
        """
        _check_rule(self, ("mean", "median", "trimmed_mean"))

    @property
    def copies(self) -> WindowCopies:
        """Which changed copies of its windows a client sums over, besides the windows."""
        return WindowCopies()

    # ---- client half

    def phases(self, training: TrainingConfig) -> tuple[Phase, ...]:
        """Train nothing."""
        return ()

    def delta_reference(self, broadcast: Broadcast) -> Tree:
        """Take no sums over: they are measured in each round."""
        return {}

    def summand(self, update: Update, broadcast: Broadcast, limits: SecureSettings) -> Tree:
        """Add the client's whole sums."""
        alone = SumMethod.fold(self, {}, None, update)
        return {**alone.change, "clients": torch.tensor(alone.clients)}

    def serving_models(self, client: Client) -> dict[str, Client]:
        """Return by name all networks that the client could serve with, `shared` and `personalized` among them."""
        return {SHARED_HEAD: client, PERSONALIZED: self.serving_model(client)}

    def adapted_model(self, client: Client, broadcast: Broadcast, features: Tensor, *, is_far: bool) -> Client | None:
        """Return what serves a client that has no label, adapted to its own windows' features (n, D).

        is_far: whether the client lies otherwise than most. None: it serves with what came.
        """
        return None

    def without_sensor(self, client: Client, broadcast: Broadcast) -> Broadcast:
        """Return the broadcast as it serves a client that lacks a sensor, if the network says what that changes."""
        return broadcast

    # ---- server half

    def weight(self, update: Update) -> float:
        """Count every client alike: its sums say how many examples it has."""
        return 1.0

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> SumChanges:
        """Add one client's sums, and take out those that they replace."""
        before = SumChanges.of(accumulator)
        change = dict(before.change)
        for tree, sign in ((update.tensors, 1), (update.replaces or {}, -1)):
            change |= {name: change.get(name, 0) + sign * value.long() for name, value in tree.items()}
        clients = before.clients + bool(update.tensors) - bool(update.replaces)
        return SumChanges(weight=before.weight + self.weight(update), change=change, clients=clients)

    def accumulated(self, state: Tree, total: Tree, clients: Sequence[str]) -> SumChanges:
        """Return all clients' sums, which take the place of those before (`federation.secure_sums.summation`)."""
        change = {name: total[name].long() for name in self.upload_groups}
        return SumChanges(weight=float(len(clients)), change=change, clients=int(total["clients"]))

    def without_contributions(self, state: Tree) -> Tree:
        """Return the state as it is when nobody has anything in it."""
        return {**state, "sums": map_tree(torch.zeros_like, state["sums"])}

    def implausibility(self, upload: Tree, examples: int, training: TrainingConfig) -> str:
        """Say why no client with so many examples can have made an upload that fits the schema; empty if one can."""
        return ""

    def sum_implausibility(self, total: Tree, clients: int, deviation: float) -> str:
        """Say why no so many clients can have added up to this; empty if they can.

        deviation: of the noise that each number has, in whole numbers.
        """
        return ""

    # ---- rules that hold clients against each other (`federation.aggregation.present_sums`)

    def contribution_claim(self, update: Update) -> UpdateClaim:
        """Return what a client's part is held against the others' by: its weight, as a whole number, and norms."""
        return UpdateClaim(0, {})

    def capped_contribution(self, update: Update, weight: int) -> Update:
        """Return an update whose part has so much weight, where it has more."""
        return update

    def chosen_contributions(self, clients: Sequence[str], read: Callable[[str], Update], seed: int) -> Sequence[str]:
        """Return the clients whose parts `aggregation` uses, in the same order; `seed` is the plan's."""
        return clients


def trains(method: Method, training: TrainingConfig) -> bool:
    """Whether a client takes steps at all, and does not only measure its examples."""
    return bool(method.phases(training))


def features_incompatibility(method: Method, features_at: str) -> str | None:
    """Say why a method can't use features that a network takes at that place, and what to do; None if it can."""
    if features_at == "head" or not method.solves_heads:
        return None
    return (
        f"the method {method.name} solves heads from features, so features must be the head's input, but the model's "
        f"option features_at is {features_at}; leave it out"
    )


def empty_training_stats(method: Method, training: TrainingConfig, like: Tensor) -> TrainingStats:
    """Return what a round of one client measures that has no examples and has not trained."""
    empty = method.empty_sums(training, like)
    return TrainingStats(empty, empty, like.new_zeros(()))


def _check_rule(method: Method, rules: Sequence[str]) -> None:
    if method.aggregation not in rules:
        raise SettingsError(f"{method.name}: aggregation={method.aggregation}: expected {', '.join(rules)}")
    if not 0 <= method.trim < 0.5 or method.byzantine < 0:
        raise SettingsError(
            f"trim={method.trim}, byzantine={method.byzantine}: expected 0 <= trim < 0.5 and byzantine >= 0"
        )


def sum_method_of(method: Method) -> SumMethod | None:
    """Return a method that uploads sums, and None for one that trains in rounds."""
    return method if isinstance(method, SumMethod) else None
