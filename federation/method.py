"""The interface of a federated method; the base class is FedAvg's weighted mean of all parameters.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017, arXiv 1602.05629 (algorithm 1).

The client half is pure functions of tensors without a branch on a tensor's value, so that `torch.func.vmap` can lift
them over clients. The server half is pure functions of the server's state, a tree of tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from federation.errors import RoundError
from federation.losses import cross_entropy
from federation.plan import Task
from federation.records import Batch, Broadcast, ClassStats, Client, Forward, Phase, Tensors, Tree, Update
from federation.tree import map_tree, merge, select


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: its fields are its hyper-parameters, so it prints, compares and travels as JSON."""

    name: ClassVar[str]
    has_global_model: ClassVar[bool] = True
    class_stats_at: ClassVar[frozenset[str]] = frozenset()
    """When the client measures `ClassStats` of its examples: "before" and/or "after" training."""
    sends_prototypes: ClassVar[bool] = False
    """Whether the model must have ALP layers, whose buffers the method shares."""

    weighting: Literal["examples", "uniform"] = "examples"

    # ---- client half

    def shared(self, name: str) -> bool:
        """Whether the parameter of that name travels."""
        return True

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Lay what came from the server over the client; return it and what the round's loss needs."""
        return client._replace(params=merge(client.params, broadcast["params"])), {}

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Say which parameters train, and for how many epochs, one stretch after the other."""
        return (Phase(lambda name: True, task.epochs),)

    def loss(
        self, forward: Forward, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Return the scalar to minimize and the buffers that the network moved."""
        output = forward(params, buffers, batch.x, batch.mask)
        return cross_entropy(output, batch), output.buffers

    def upload(self, client: Client, round_state: Tree, before: ClassStats, after: ClassStats) -> tuple[Client, Tree]:
        """Return the client as it is kept, and the tree that travels."""
        return client, {"params": select(client.params, self.shared)}

    def predict(self, forward: Forward, client: Client, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Score the classes: x (B, ...) -> (B, C), larger is likelier."""
        return forward(client.params, client.buffers, x, mask).logits

    # ---- server half

    def server_init(self, params: Tensors, buffers: Tensors, task: Task) -> Tree:
        """Make the server's state from the initial model."""
        return {"params": select(params, self.shared)}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Return what a client gets; the same for every client here."""
        return state

    def fold(self, state: Tree, accumulator: Any, update: Update) -> Any:
        """Add one update to a running sum (None at first), so that memory does not grow with clients."""
        weight = self.weight(update)
        # float64: the order in which clients come then hardly matters, and 10,000 of them lose nothing
        weighted = map_tree(lambda value: value.double() * weight, update.tensors["params"])
        if accumulator is None:
            return {"weight": weight, "params": weighted}
        params = map_tree(torch.add, accumulator["params"], weighted)
        return {**accumulator, "weight": accumulator["weight"] + weight, "params": params}

    def finish(self, state: Tree, accumulator: Any) -> Tree:
        """Turn the running sum into the next state."""
        return {**state, "params": mean_of(accumulator["params"], accumulator["weight"], state["params"])}

    def aggregate(self, state: Tree, updates: Iterable[Update]) -> Tree:
        """Combine a round's updates, w ← Σ n_k/Σn_j · w_k here; pass them sorted by client id.

        Raises:
            RoundError: if there is no update, or none has weight.
        """
        accumulator = None
        for update in updates:
            accumulator = self.fold(state, accumulator, update)
        if accumulator is None or not accumulator["weight"] > 0:
            raise RoundError("a round needs at least one update with examples to aggregate; none came")
        return self.finish(state, accumulator)

    def weight(self, update: Update) -> float:
        """Weight of an update in the mean; a stale one counts less."""
        return (update.examples if self.weighting == "examples" else 1.0) * update.discount


def mean_of(sums: Tensors, weight: float, like: Tensors) -> Tensors:
    """Divide float64 sums by their weight and return them in the dtypes of `like`."""
    return {name: (sums[name] / weight).to(value.dtype) for name, value in like.items()}
