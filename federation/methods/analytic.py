"""Analytic federated learning: a linear head by ridge regression, from exact sums of all clients, in one round.

R. He, K. Tong, D. Fang, H. Sun, Z. Zeng, H. Li, T. Chen, H. Zhuang: AFL: A Single-Round Analytic Approach for Federated
Learning with Pre-trained Models, CVPR 2025, arXiv 2405.16240: one round, independent of the partition. E. Fanì,
R. Camoriano, B. Caputo, M. Ciccone: Accelerating Heterogeneous Federated Learning with Closed-form Classifiers, ICML
2024, arXiv 2406.01116 (Fed3R): ridge regression with random features.

No training: the network below the head is frozen, `har_features` or one trained by another federation. A client sends
G_k = Σ w a aᵀ and B_k = Σ w a yᵀ of its features a (`federation.aggregation.ridge`), and the server solves W = (Σ G_k +
λ tr/d I)⁻¹ Σ B_k. Ours, not the papers': examples of a class weigh 1 / √n_class on each client; λ is relative to the
mean of the diagonal; sums travel in fixed point, so that the result is the same bit for bit whatever the order, cohort
and number of rounds. The state has the sum of all clients alone: an update comes with what it replaces
(`Update.replaces`), which whoever drives the method has kept. So a client joins by an addition, sends again without
counting twice, and leaves exactly by a subtraction.

Each client predicts with a head of its own, solved of all sums and its own ones, which weigh as all others together.
Of a network that says which of its features do not depend on how the phone lies (`har_features`), the same sums give
heads on those alone, the solution of a sub-block. The shared and the own head are then a weighted mean of that
head and the one on all features: two opinions, of which one cannot lean on how the phone lies. Which of the four a
device serves with is for its gate to decide. A device that lacks a sensor solves all of them on the features that it
has. Sums say much of a person's features: whoever may not see them needs
secure sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from federation.aggregation import ridge, robust
from federation.aggregation.averaging import Accumulator, SumChanges
from federation.aggregation.pseudo_labels import pseudo_labelled_head
from federation.aggregation.ridge_numpy import Damping, FixedSums, RidgeOptions
from federation.aggregation.screening import UpdateClaim, change_norms
from federation.errors import RoundError, SettingsError
from federation.method import SumMethod
from federation.plan import TrainingConfig
from federation.records import (
    Batch,
    Broadcast,
    Client,
    ExampleSums,
    Output,
    SumKind,
    Tensors,
    TrainingStats,
    Tree,
    Update,
    UploadGroup,
)
from federation.records.head import check_dense, with_linear_head
from federation.records.tree import where
from federation.rounds.serving import (
    PERSONALIZED,
    PERSONALIZED_ANY_ORIENTATION,
    SHARED_ANY_ORIENTATION,
    SHARED_HEAD,
)
from federation.tasks.task import Task
from federation.training.schedule import WindowCopies
from gaitway.tasks import TargetKind

SUMS = ("gram", "moment")
ORIENTATION_FREE = "orientation_free"
"""The buffer of a network with 1 for each of its features (D,) that is the same however the phone is turned."""
ACCELERATION = "acceleration"
"""The buffer of a network with 1 for each of its features (D,) that need no second sensor."""
ANY_ORIENTATION = SHARED_ANY_ORIENTATION, PERSONALIZED_ANY_ORIENTATION


@dataclass(frozen=True, kw_only=True)
class Analytic(SumMethod):
    """W = (G + λ tr/d I)⁻¹ B; each client's own head from G + N G_k and B + N B_k."""

    name: ClassVar[str] = "analytic"
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = {"gram": UploadGroup.VALUE, "moment": UploadGroup.VALUE}

    sum_groups: ClassVar[Mapping[str, SumKind]] = {
        "gram": SumKind.WHOLE,
        "moment": SumKind.WHOLE,
        "clients": SumKind.COUNT,
    }

    ridge: float = 1e-2  # λ, of the mean of G's diagonal; above 0
    clip: float = 4.0  # features are cut off beyond ±clip, 0 to 8: no example weighs more
    groups: int = 32  # into so many a robust rule deals more clients, 3 to 256; it judges a group as one
    own_weight: float = 1.0  # of a client's own sums against all others' together; 0: the shared head
    # of the head without axes in what serves, 0 to 1; 0.33 of 0, 0.25, 0.33 and 0.5 was chosen on UCI HAR and SP-SW-HAR
    orientation_free_share: float = 0.33
    rotations: int = 0  # copies of each window, turned at random, that a client's sums have besides it, 0 to 16
    floor: float = 0.0  # added to G's diagonal: where its sums have noise of deviation σ, about 2 σ √d, 0 or more
    sensor_loss: bool = False  # one more copy of each window, in which the second of two sensors reads nothing
    degrees: float = 180.0  # by how much these copies are turned at most, above 0; 180: by any rotation

    def __post_init__(self) -> None:
        """Refuse numbers that have no solution.

        Raises:
            SettingsError: naming the option.
        """
        super().__post_init__()
        if not 0 < self.ridge <= 1e6:
            raise SettingsError(f"{self.name}: ridge={self.ridge}: expected a number above 0, such as 0.01")
        if not 0 < self.clip <= 8:
            raise SettingsError(f"{self.name}: clip={self.clip}: expected a number above 0, and 8 at the most")
        if not 3 <= self.groups <= 256:
            raise SettingsError(f"{self.name}: groups={self.groups}: expected 3 to 256")
        if not 0 <= self.own_weight <= 1e6:
            raise SettingsError(f"{self.name}: own_weight={self.own_weight}: expected 0 or more, such as 1")
        if not 0 <= self.orientation_free_share <= 1:
            share = self.orientation_free_share
            raise SettingsError(f"{self.name}: orientation_free_share={share}: expected 0 to 1, such as 0.33")
        if not 0 <= self.rotations <= 16:
            raise SettingsError(f"{self.name}: rotations={self.rotations}: expected 0 to 16 turned copies of a window")
        if not 0 <= self.floor <= 1e12:
            raise SettingsError(f"{self.name}: floor={self.floor}: expected 0 or more; 0 where sums have no noise")
        if not 0 < self.degrees <= 180:
            raise SettingsError(f"{self.name}: degrees={self.degrees}: expected an angle above 0 and up to 180")

    @property
    def copies(self) -> WindowCopies:
        """Sum over turned copies of each window, and over one without its second sensor, as the options say."""
        return WindowCopies(self.rotations, self.degrees, self.sensor_loss)

    @property
    def solves_heads(self) -> bool:
        """Whether heads come of features: the ridge's do."""
        return True

    def task_incompatibility(self, task: Task) -> str | None:
        """Want one class an example."""
        if task.target is TargetKind.CLASS:
            return None
        return (
            f"the method {self.name} solves a head for one class per example, but the task {task.name} learns another "
            f"target; use a method that trains, such as fedavg"
        )

    @property
    def program_incompatibility(self) -> str | None:
        """Devices need no program for sums; heads are solved, for which ONNX has no operator."""
        return (
            f"the method {self.name} solves linear equations on the device, for which ONNX has no operator; it needs "
            f"no program: phones and devices compute its sums without torch anyway"
        )

    # ---- client half

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Know no sums yet, and no head of one's own."""
        check_dense(client.params, training.classes, self.name)
        like = next(iter(client.params.values()))
        head = {
            "weight": like.new_zeros(training.classes, training.feature_dim),
            "bias": like.new_zeros(training.classes),
        }
        heads = dict.fromkeys(self._candidates(client), head)
        return client._replace(memory={**_nothing(training, like), "heads": heads, "solved": like.new_zeros(())})

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Take over the network with the shared head, and the shared sums."""
        client, round_state = super().receive(client, broadcast)
        return client, {**round_state, "sums": broadcast["sums"]}

    def empty_sums(self, training: TrainingConfig, like: Tensor, clients: tuple[int, ...] = ()) -> ExampleSums:
        """Return sums of no example."""
        return ridge.empty_ridge_sums(training.classes, training.feature_dim, like, clients)

    def add_sums(
        self, task: Task, training: TrainingConfig, output: Output, batch: Batch, before: ExampleSums
    ) -> ExampleSums:
        """Add a batch's features and their products."""
        return ridge.added(before, task.labelled_features(output, batch), self.clip)

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send the sums; keep them, with the head that they and the shared sums give."""
        sent = ridge.travelling(stats.after)
        return self._personal(client._replace(memory={**client.memory, **sent}), round_state["sums"]), sent

    def implausibility(self, upload: Tree, examples: int, training: TrainingConfig) -> str:
        """Hold sums against the bounds that the clip and the number of examples set."""
        return ridge.implausibility(upload, examples * (1 + self.rotations + self.sensor_loss), self.clip)

    def sum_implausibility(self, total: Tree, clients: int, deviation: float) -> str:
        """Hold the sums against what so many clients' sums are."""
        if (count := int(total["clients"])) != clients:
            return f"it counts {count:,} clients, but {clients} have added to it"
        sums = {name: total[name].long() for name in SUMS}
        return ridge.total_implausibility(sums, count, self.clip, deviation)

    @property
    def predicts_by_broadcast(self) -> bool:
        """Whether newer sums change what a client predicts: they do."""
        return True

    def refresh(self, client: Client, broadcast: Broadcast) -> Client:
        """Solve the client's own head again, with newer shared sums."""
        return self._personal(client, broadcast["sums"])

    def serving_model(self, client: Client) -> Client:
        """Return the network with the client's own head, or while it has none with the one that came."""
        return self._with_head(client, PERSONALIZED)

    def serving_models(self, client: Client) -> dict[str, Client]:
        """Return the network with the shared head and the client's own, and with both on the columns without axes.

        All of them are one network with other weights of its head; before the client has heads, all are `shared`.
        """
        return {SHARED_HEAD: client} | {name: self._with_head(client, name) for name in self._candidates(client)}

    def adapted_model(self, client: Client, broadcast: Broadcast, features: Tensor, *, is_far: bool) -> Client | None:
        """Return the network with a head that counts windows as what the shared head names them, where that helps."""
        if ORIENTATION_FREE not in client.buffers:
            return None
        sums, columns = broadcast["sums"], client.buffers[ORIENTATION_FREE].nonzero()[:, 0].tolist()
        options = RidgeOptions.of(vars(self))
        fixed = FixedSums(*(sums[name].cpu().numpy() for name in SUMS))
        head = pseudo_labelled_head(
            fixed, int(sums["clients"]), features.cpu().numpy(), options, columns, is_far=is_far
        )
        if head is None:
            return None
        like = client.memory["solved"]
        weight, bias = (torch.from_numpy(array).to(like) for array in head)
        return client._replace(params=with_linear_head(client.params, weight, bias))

    def without_sensor(self, client: Client, broadcast: Broadcast) -> Broadcast:
        """Leave the features out that such a device lacks: its heads are solved of a sub-block of the same sums."""
        sums, columns = broadcast["sums"], client.buffers.get(ACCELERATION)
        if columns is None or not int(sums["clients"]):
            return broadcast
        total = ridge.restricted(sums, columns)
        nothing = {name: torch.zeros_like(value) for name, value in total.items()}
        head = self._solved(total, nothing, torch.tensor(0.0), client.buffers.get(ORIENTATION_FREE))
        like = next(iter(client.params.values()))
        params = with_linear_head(broadcast["params"], *(value.to(like) for value in head))
        return {**broadcast, "params": params, "sums": {**sums, **total}}

    def _with_head(self, client: Client, name: str) -> Client:
        memory = client.memory
        own = with_linear_head(client.params, memory["heads"][name]["weight"], memory["heads"][name]["bias"])
        return client._replace(params=where(memory["solved"] > 0, own, client.params))

    def _candidates(self, client: Client) -> tuple[str, ...]:
        """Name the heads that the client solves itself; those without axes for a network that says which these are."""
        return (PERSONALIZED, *ANY_ORIENTATION) if ORIENTATION_FREE in client.buffers else (PERSONALIZED,)

    def _personal(self, client: Client, shared: Tree) -> Client:
        others = self.own_weight * shared["clients"].double().clamp(min=1)
        columns, alone = client.buffers.get(ORIENTATION_FREE), torch.zeros_like(others)
        heads = {PERSONALIZED: self._solved(shared, client.memory, others, columns)}
        for name, weight in zip(ANY_ORIENTATION, (alone, others), strict=True):
            if name in client.memory["heads"]:
                heads[name] = ridge.solve(shared, client.memory, weight, self._damping, columns)
        like = client.memory["solved"]
        kept = {name: {"weight": weight.to(like), "bias": bias.to(like)} for name, (weight, bias) in heads.items()}
        return client._replace(memory={**client.memory, "heads": kept, "solved": torch.ones_like(like)})

    def _solved(self, shared: Tree, own: Tree, clients: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return weight and bias of a head that uses all features, also `columns` (D,) of those without axes."""
        share = self.orientation_free_share if columns is not None else 0.0
        return ridge.solve_mean(shared, own, clients, self._damping, columns, share)

    @property
    def _damping(self) -> Damping:
        return Damping(self.ridge, self.floor)

    # ---- server half

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Know no sums; send the network, and keep which of its features are without axes."""
        check_dense(params, training.classes, self.name)
        empty = {name: value.long() for name, value in _nothing(training, next(iter(params.values()))).items()}
        columns = {ORIENTATION_FREE: buffers[ORIENTATION_FREE]} if ORIENTATION_FREE in buffers else {}
        return {"params": params, "sums": {**empty, "clients": torch.tensor(0)}, **columns}

    def global_model(self, client: Client, broadcast: Broadcast) -> Client:
        """Return a client that serves with the shared head."""
        client, _ = self.receive(client, broadcast)
        return client._replace(memory={**client.memory, "solved": torch.zeros_like(client.memory["solved"])})

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Add the changes to the sums of all, and solve the head of these."""
        changes, sums = SumChanges.of(accumulator), state["sums"]
        total = {name: sums[name] + changes.change.get(name, 0) for name in SUMS}
        nothing = {name: torch.zeros_like(value) for name, value in total.items()}
        try:
            weight, bias = self._solved(total, nothing, torch.tensor(0.0), state.get(ORIENTATION_FREE))
        except RuntimeError as error:  # torch's LinAlgError, which its types do not name
            raise RoundError(
                f"no head can be solved from the sums of {int(sums['clients']) + changes.clients} clients: their "
                f"matrix is not positive definite, which noise can cause; raise method.floor={self.floor:g} to about "
                f"2 σ √d, "
                "for d features and noise in the sums with a deviation of σ · 2¹⁵ whole numbers"
            ) from error
        like = next(iter(state["params"].values()))
        params = with_linear_head(state["params"], weight.to(like), bias.to(like))
        new = {"params": params, "sums": {**total, "clients": sums["clients"] + changes.clients}}
        return new | {name: state[name] for name in (ORIENTATION_FREE,) if name in state}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Return the network with the shared head, and the sums."""
        return {name: state[name] for name in ("params", "sums")}

    def contribution_claim(self, update: Update) -> UpdateClaim:
        """Weigh a client's examples, Σ_c √n_c in steps, and measure its sums for one unit of that weight."""
        weight = int(update.tensors["gram"][-1])
        norms = change_norms(update.tensors, {}, self.upload_groups)
        return UpdateClaim(weight, {name: norm / weight for name, norm in norms.items()} if weight else {})

    def capped_contribution(self, update: Update, weight: int) -> Update:
        """Return smaller sums of the same means."""
        return update._replace(tensors=ridge.capped(update.tensors, weight))

    def chosen_contributions(self, clients: Sequence[str], read: Callable[[str], Update], seed: int) -> Sequence[str]:
        """Choose by least trimmed squares among clients, or among groups of many."""
        if self.aggregation == "mean":
            return clients
        groups = robust.deal(clients, self.groups, seed)
        sums = [ridge.total_of(read(client).tensors for client in group) for group in groups]
        used = robust.used(self.aggregation, sums, self.trim, self.ridge)
        return sorted(client for index in used for client in groups[index])


def _nothing(training: TrainingConfig, like: Tensor) -> Tree:
    size = training.feature_dim + 1
    shapes = {"gram": (size * (size + 1) // 2,), "moment": (size, training.classes)}
    return {name: like.new_zeros(shape, dtype=torch.int32) for name, shape in shapes.items()}
