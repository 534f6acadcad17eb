"""FeSEM: several centres; a client gets, and moves, the one that its parameters are nearest to.

M. Xie, G. Long, T. Shen, T. Zhou, X. Wang, J. Jiang: Multi-Center Federated Learning: Clients Clustering for Better
Personalization, 2020, arXiv 2005.01026, equations 7 and 8, algorithm 1.

Differs from the paper: it starts the centres at random. Here they all start at the initial model, which all clients
train from, and the first round spreads them: the first client's parameters, then each time those of the client that is
farthest from the centres so far. A centre that no client is nearest to keeps its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from federation.aggregation.averaging import MeanSums, mean_of
from federation.errors import RoundError
from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Batch, Broadcast, Client, Tensors, Tree, Update
from federation.tasks.task import Task
from federation.training.forward import Network
from federation.tree import squared_distance


@dataclass(frozen=True, kw_only=True)
class FeSem(Method):
    """Assign each client to the centre nearest in L2; centre ← mean of its clients."""

    name: ClassVar[str] = "fesem"
    averages_parameters: ClassVar[bool] = False
    personal_broadcast: ClassVar[bool] = True
    needs_single_updates: ClassVar[str] = "gives each client the centre that its own parameters are nearest to"

    centres: int = 2
    mu: float = 0.0  # λ of the paper: weight of ½‖w − centre‖² in the local loss

    @property
    def has_global_model(self) -> bool:
        """Every client has its own."""
        return False

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Keep the received centre as the anchor."""
        client, _ = super().receive(client, broadcast)
        return client, {"anchor": broadcast["params"]}

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add the pull towards the centre, if it has weight."""
        loss, buffers = super().loss(task, network, params, buffers, batch, round_state)
        if self.mu:
            loss = loss + self.mu / 2 * squared_distance(params, round_state["anchor"])
        return loss, buffers

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Start all centres at the initial model; nobody has been assigned one."""
        return {"centres": {str(c): dict(params) for c in range(self.centres)}}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Send a client its own centre; one that has none yet gets the first."""
        centre = int(state.get("assigned", {}).get(client_id, 0))
        return {"params": state["centres"][str(centre)]}

    def aggregate(self, state: Tree, updates: Iterable[Update]) -> Tree:
        """Assign (eq. 7), then average (eq. 8).

        Raises:
            RoundError: if there is no update.
        """
        came = list(updates)
        if not came:
            raise RoundError("a round needs at least one update with examples to aggregate; none came")
        centres = list(state["centres"].values())
        assigned = dict(state.get("assigned", {}))  # the wire leaves out an empty group
        if not assigned:
            centres = _spread([update.tensors["params"] for update in came], centres)
        sums = [MeanSums() for _ in centres]
        for update in came:
            nearest = _nearest(update.tensors["params"], centres)
            assigned[update.client_id] = torch.tensor(nearest)
            sums[nearest] = self.fold_params(sums[nearest], update)
        moved = {str(c): _mean(centre, sums[c]) for c, centre in enumerate(centres)}
        return {"centres": moved, "assigned": dict(sorted(assigned.items()))}


def _mean(centre: Tensors, sums: MeanSums) -> Tensors:
    return centre if sums.params is None else mean_of(sums.params, sums.weight, centre)


def _spread(clients: Sequence[Tensors], centres: Sequence[Tensors]) -> list[Tensors]:
    """Choose as many clients as there are centres, each the farthest from those before it."""
    chosen = [clients[0]]
    while len(chosen) < min(len(centres), len(clients)):
        gaps = [min(float(squared_distance(client, other)) for other in chosen) for client in clients]
        chosen.append(clients[gaps.index(max(gaps))])
    return [*chosen, *centres[len(chosen) :]]


def _nearest(client: Tensors, centres: Sequence[Tensors]) -> int:
    distances: Tensor = torch.stack([squared_distance(client, centre) for centre in centres])
    return int(distances.argmin())
