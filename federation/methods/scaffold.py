"""SCAFFOLD: control variates correct the drift in a client's steps.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning, ICML 2020, arXiv 1910.06378, algorithm 1, equations 3 to 5, with option II for c_i.

Differs from the paper: c is the mean of the c_i of the clients that have ever reported, since the server does not know
how many there are; the paper counts those to come as zeros. The paper's steps have no momentum. With it, K η_l in
option II is what a constant gradient moves a parameter by in K steps, η_l Σ_{t≤K} (1 − m^t)/(1 − m), so that c_i stays
a mean of the client's gradients; with K η_l it is up to 1/(1 − m) times as long, and diverges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from federation.aggregation.averaging import Accumulator, MeanSums, add_weighted, sums_of_changes
from federation.errors import SettingsError
from federation.method import Method, Traits
from federation.plan import SecureSettings, TrainingConfig
from federation.records import Batch, Broadcast, Client, SumKind, Tensors, TrainingStats, Tree, Update, UploadGroup
from federation.records.tree import map_tree
from federation.tasks.task import Task
from federation.training.forward import Network


@dataclass(frozen=True, kw_only=True)
class ScaffoldSums(MeanSums):
    """The sums of parameters, and Σ (c_i⁺ − c_i) of the clients that came."""

    changes: Tensors | None = None
    clients_seen: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
    """y ← y − η_l (g(y) − c_i + c); w ← w + η_g · mean(y_i − w)."""

    name: ClassVar[str] = "scaffold"
    traits: ClassVar[Traits] = Traits(optimizer="sgd", lr=0.1)
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = {**Method.upload_groups, "variate": UploadGroup.VALUE}

    sum_groups: ClassVar[Mapping[str, SumKind]] = {**Method.sum_groups, "variate": SumKind.VALUE}

    server_lr: float = 1.0

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Start the client's variate c_i at zero."""
        return client._replace(memory={"variate": map_tree(torch.zeros_like, client.params)})

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Keep the anchor w and the correction c − c_i."""
        client, _ = super().receive(client, broadcast)
        correction = map_tree(torch.sub, broadcast["variate"], client.memory["variate"])
        return client, {"anchor": broadcast["params"], "correction": correction, "variate": broadcast["variate"]}

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add ⟨c − c_i, y⟩, whose gradient is the correction (eq. 3)."""
        loss, buffers = super().loss(task, network, params, buffers, batch, round_state)
        linear = [(params[name] * value).sum() for name, value in round_state["correction"].items()]
        return loss + torch.stack(linear).sum(), buffers

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send y and c_i⁺ − c_i, where c_i⁺ = c_i − c + (w − y)/(K η_l) (eq. 4, option II), K η_l as in `lr_sum`."""
        client, tensors = super().upload(client, round_state, stats)
        walked = stats.lr_sum.clamp(min=torch.finfo(stats.lr_sum.dtype).tiny)
        slope = {name: (value - client.params[name]) / walked for name, value in round_state["anchor"].items()}
        change = map_tree(torch.sub, slope, round_state["variate"])
        variate = map_tree(torch.add, client.memory["variate"], change)
        return client._replace(memory={"variate": variate}), {**tensors, "variate": change}

    def delta_reference(self, broadcast: Broadcast) -> Tree:
        """Begin at zero: what is sent of a variate is its change, which the server adds up."""
        return {**super().delta_reference(broadcast), "variate": map_tree(torch.zeros_like, broadcast["variate"])}

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Start from the initial model with c = 0.

        Raises:
            SettingsError: with Adam, whose steps say nothing about the size of the gradient.
        """
        if training.optimizer != "sgd":
            raise SettingsError(f"scaffold reads gradients off SGD's steps, not off {training.optimizer}'s: choose sgd")
        start = super().server_init(params, buffers, training)
        return {**start, "variate": map_tree(torch.zeros_like, start["params"])}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Send w and c."""
        return {"params": state["params"], "variate": state["variate"]}

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> ScaffoldSums:
        """Add parameters by weight, and changes of variates plainly."""
        before = ScaffoldSums.of(accumulator)
        changes = add_weighted(before.changes, update.tensors["variate"], 1.0)
        seen = (*before.clients_seen, update.client_id)
        return replace(self.fold_params(before, update), changes=changes, clients_seen=seen)

    def summand(self, update: Update, broadcast: Broadcast, limits: SecureSettings) -> Tree:
        """Add the change of the variate."""
        limit = limits.max_value
        variate = {name: value.double().clamp(-limit, limit) for name, value in update.tensors["variate"].items()}
        return {**super().summand(update, broadcast, limits), "variate": variate}

    def accumulated(self, state: Tree, total: Tree, clients: Sequence[str]) -> ScaffoldSums:
        """Return the sums of parameters and of variates' changes; who has taken part, the server knows."""
        sums = sums_of_changes(self.broadcast(state, "")["params"], total)
        return ScaffoldSums(
            weight=sums.weight, params=sums.params, changes=total["variate"], clients_seen=tuple(clients)
        )

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Step towards the mean of the clients, and move c by the mean change (eq. 5)."""
        sums = ScaffoldSums.of(accumulator)
        mean, old = self.combined(sums, state["params"]), state["params"]
        params = {name: torch.lerp(old[name], mean[name], self.server_lr) for name in old}
        before = state.get("seen", {})
        seen = dict(sorted({**before, **dict.fromkeys(sums.clients_seen, torch.tensor(1))}.items()))
        changes = sums.changes or {}
        variate = {
            name: ((value.double() * len(before) + changes[name]) / len(seen)).to(value.dtype)
            for name, value in state["variate"].items()
        }
        return {"params": params, "variate": variate, "seen": seen}
