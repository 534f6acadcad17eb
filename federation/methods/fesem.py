"""FeSEM: several centres; each client gets and updates the one nearest to its parameters.

M. Xie, G. Long, T. Shen, T. Zhou, X. Wang, J. Jiang: Multi-Center Federated Learning: Clients Clustering for Better
Personalization, 2020, arXiv 2005.01026, equations 7 and 8, algorithm 1.

Differs from the paper: it starts the centres at random. Here they all start at the initial model, which all clients
train from, and the first round spreads them: the first client's parameters, then each time those of the client that is
farthest from the centres so far. A centre that no client is nearest to keeps its value.

With `clustering="one_step"` (ours) the server needs sums by centre alone, and no client's parameters: every client gets
all centres, trains from the one nearest to the parameters that it had, and adds what it has trained to the one nearest
to that: a step of Lloyd's a round. While all centres are the initial model, clients are dealt to them by their names,
which spreads them where the above takes clients that are far apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from federation.aggregation.averaging import Accumulator, MeanSums, mean_of
from federation.errors import RoundError
from federation.method import Method, Traits
from federation.plan import SecureSettings, TrainingConfig
from federation.records import Batch, Broadcast, Client, SumKind, Tensors, Tree, Update
from federation.records.tree import merge, squared_distance
from federation.seeds import seed_for
from federation.tasks.task import Task
from federation.training.forward import Network


@dataclass(frozen=True, kw_only=True)
class CentreSums(Accumulator):
    """By centre the sum of its clients' parameters, and their weight."""

    centres: tuple[MeanSums, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FeSem(Method):
    """Assign each client to the centre nearest in L2; centre ← mean of its clients."""

    name: ClassVar[str] = "fesem"
    averages_parameters: ClassVar[bool] = False
    traits: ClassVar[Traits] = Traits(personal_broadcast=True)
    needs_single_updates: ClassVar[str] = (
        "gives each client the centre that its own parameters are nearest to; set clustering=one_step, for which sums "
        "by centre are enough"
    )
    sum_groups: ClassVar[Mapping[str, SumKind]] = {
        "centres": SumKind.WEIGHTED_CHANGE,
        "weights": SumKind.COUNT,
    }

    centres: int = 2
    clustering: Literal["exact", "one_step"] = "exact"
    mu: float = 0.0  # λ of the paper: weight of ½‖w − centre‖² in the local loss

    @property
    def has_global_model(self) -> bool:
        """Every client has its own."""
        return False

    @property
    def sum_incompatibility(self) -> str | None:
        """Refuse to assign clients by their single parameters."""
        if self.clustering == "exact":
            return f"the method {self.name} {self.needs_single_updates}"
        return None

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Keep the received centre, or of several the one nearest to the parameters of before, as the anchor."""
        if "centres" not in broadcast:
            client, _ = super().receive(client, broadcast)
            return client, {"anchor": broadcast["params"]}
        centres = list(broadcast["centres"].values())
        chosen = torch.stack([squared_distance(client.params, centre) for centre in centres]).argmin()
        nearest = {name: torch.stack([centre[name] for centre in centres])[chosen] for name in centres[0]}
        return client._replace(params=merge(client.params, nearest)), {"anchor": nearest}

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
        """Send a client its own centre; one that has none yet gets the first. Or all, from which it takes its own."""
        if self.clustering == "one_step":
            return {"centres": state["centres"]}
        centre = int(state.get("assigned", {}).get(client_id, 0))
        return {"params": state["centres"][str(centre)]}

    def summand(self, update: Update, broadcast: Broadcast, limits: SecureSettings) -> Tree:
        """Add n · (w − centre) to the centre nearest to w, and n to its weight; nothing to the others."""
        weight, limit = min(round(self.weight(update)), limits.max_weight), limits.max_change
        centres, params = broadcast["centres"], update.tensors["params"]
        chosen = _dealt_or_nearest(update, list(centres.values()))
        changes = {
            key: {
                name: (value.double() - centre[name].double()).clamp(-limit, limit) * (weight if at == chosen else 0)
                for name, value in params.items()
            }
            for at, (key, centre) in enumerate(centres.items())
        }
        weights = torch.zeros(len(centres), dtype=torch.float64)
        weights[chosen] = weight
        return {"centres": changes, "weights": weights}

    def accumulated(self, state: Tree, total: Tree, clients: Sequence[str]) -> CentreSums:
        """Return by centre W · centre + Σ n · (w − centre)."""
        weights = [float(count) for count in total["weights"]]
        sums = tuple(
            MeanSums(weight=count, params={n: v.double() * count + total["centres"][key][n] for n, v in centre.items()})
            for count, (key, centre) in zip(weights, state["centres"].items(), strict=True)
        )
        return CentreSums(weight=sum(weights), centres=sums)

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> CentreSums:
        """Add an update to the sums of the centre nearest to it."""
        before, centres = CentreSums.of(accumulator), list(state["centres"].values())
        sums = list(before.centres or [MeanSums() for _ in centres])
        chosen = _dealt_or_nearest(update, centres)
        sums[chosen] = self.fold_params(sums[chosen], update)
        return CentreSums(weight=before.weight + self.weight(update), centres=tuple(sums))

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Set each centre to the mean of its clients; one that has none stays."""
        sums = CentreSums.of(accumulator).centres
        moved = zip(state["centres"].items(), sums, strict=True)
        return {"centres": {key: _mean(centre, own_sums) for (key, centre), own_sums in moved}}

    def aggregate(self, state: Tree, updates: Iterable[Update]) -> Tree:
        """Assign (eq. 7), then average (eq. 8).

        Raises:
            RoundError: if there is no update.
        """
        if self.clustering == "one_step":
            return super().aggregate(state, updates)
        received = list(updates)
        if not received:
            raise RoundError("a round needs at least one update with examples to aggregate; got none")
        centres = list(state["centres"].values())
        assigned = dict(state.get("assigned", {}))  # the wire leaves out an empty group
        if not assigned:
            centres = _spread([update.tensors["params"] for update in received], centres)
        sums = [MeanSums() for _ in centres]
        for update in received:
            nearest = _nearest(update.tensors["params"], centres)
            assigned[update.client_id] = torch.tensor(nearest)
            sums[nearest] = self.fold_params(sums[nearest], update)
        moved = {str(c): _mean(centre, sums[c]) for c, centre in enumerate(centres)}
        return {"centres": moved, "assigned": dict(sorted(assigned.items()))}


def _mean(centre: Tensors, sums: MeanSums) -> Tensors:
    return centre if sums.params is None or not sums.weight else mean_of(sums.params, sums.weight, centre)


def _spread(clients: Sequence[Tensors], centres: Sequence[Tensors]) -> list[Tensors]:
    """Choose as many clients as there are centres, each the farthest from those before it."""
    chosen = [clients[0]]
    while len(chosen) < min(len(centres), len(clients)):
        gaps = [min(float(squared_distance(client, other)) for other in chosen) for client in clients]
        chosen.append(clients[gaps.index(max(gaps))])
    return [*chosen, *centres[len(chosen) :]]


def _dealt_or_nearest(update: Update, centres: Sequence[Tensors]) -> int:
    """Return the centre nearest to an update; where all are the same, one by the client's name."""
    if all(torch.equal(value, centres[0][name]) for centre in centres[1:] for name, value in centre.items()):
        return seed_for(0, "centre", update.client_id) % len(centres)
    return _nearest(update.tensors["params"], centres)


def _nearest(client: Tensors, centres: Sequence[Tensors]) -> int:
    distances: Tensor = torch.stack([squared_distance(client, centre) for centre in centres])
    return int(distances.argmin())
