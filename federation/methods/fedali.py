"""FedAli: FedAvg for parameters, k-means over the clients' prototypes for the ALP layers.

S. Ek, K. Wang, F. Portet, P. Lalanda, J. Cao: FedAli: Personalized Federated Learning Alignment with Prototype Layers
for Generalized Mobile Services, 2024, arXiv 2411.10595, section 4 and algorithm 1; the layer: `models.layers.alp`.

Differs from the paper: a cluster that k-means empties keeps its previous centre (the authors' code drops it), so the
number of prototypes never shrinks. As in the authors' code, of which the paper says nothing, the first round trains
with β = 0 (`beta_warmup_rounds`): ALP only normalizes tokens, while the local prototypes already move.
`clustering="streaming"` is ours: k-means in one pass from the last round's centres, which holds one client's prototypes
at a time instead of all K·G. So is `one_step`: one step of Lloyd's a round, from the last round's centres, for which
sums and counts by centre are enough; each client finds the nearest centres of its prototypes itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from federation.aggregation.averaging import Accumulator, MeanSums, add_weighted, mean_of, sums_of_changes
from federation.aggregation.kmeans import Stream, begin_stream, kmeans, nearest, take_points
from federation.errors import RoundError, SettingsError
from federation.method import Method, Traits
from federation.plan import SecureSettings, TrainingConfig
from federation.records import Broadcast, Client, SumKind, Tensors, TrainingStats, Tree, Update, UploadGroup
from federation.records.tree import map_tree, merge

LOCAL, GLOBAL, BETA = "local_prototypes", "global_prototypes", "beta_scale"


class CentreSums(NamedTuple):
    """What one step of Lloyd's needs of each block: Σ of the prototypes nearest to each centre, and their number."""

    totals: Tensors  # (G, d), float64
    counts: Tensors  # (G,), float64


@dataclass(frozen=True, kw_only=True)
class FedAliSums(MeanSums):
    """The sums of parameters, and of each block either all clients' prototypes and their sum, or the moving centres."""

    pool: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    prototype_sum: Tensors | None = None
    streams: Mapping[str, Stream] | None = None
    step: CentreSums | None = None


@dataclass(frozen=True, kw_only=True)
class FedAli(Method):
    """Share weights and local prototypes; start every round from P_l = P_g = the k-means centres."""

    name: ClassVar[str] = "fedali"
    traits: ClassVar[Traits] = Traits(requires_alp=True)
    sum_groups: ClassVar[Mapping[str, SumKind]] = {
        **Method.sum_groups,
        "centre_sums": SumKind.WEIGHTED_VALUE,
        "centre_counts": SumKind.COUNT,
    }
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = {**Method.upload_groups, "prototypes": UploadGroup.VALUE}

    kmeans_iterations: int = 300
    kmeans_tolerance: float = 1e-4
    clustering: Literal["lloyd", "streaming", "one_step"] = "lloyd"
    beta_warmup_rounds: int = 1
    """So many rounds begin with β = 0; 0: none."""

    def __post_init__(self) -> None:
        """Refuse a negative number of rounds.

        Raises:
            SettingsError: naming the option.
        """
        super().__post_init__()
        if self.beta_warmup_rounds < 0:
            raise SettingsError(f"beta_warmup_rounds={self.beta_warmup_rounds}: expected 0 (none) or more rounds")

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Lay the parameters over the client, set both prototype sets of each block to the centres, and β's factor."""
        client, state = super().receive(client, broadcast)
        centres = {block + kind: value for block, value in broadcast["prototypes"].items() for kind in (LOCAL, GLOBAL)}
        return _with_beta(client._replace(buffers=merge(client.buffers, centres)), broadcast["beta_scale"]), state

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send the parameters and each block's local prototypes (G, d)."""
        client, tensors = super().upload(client, round_state, stats)
        return client, {**tensors, "prototypes": _blocks(client.buffers, LOCAL)}

    def delta_reference(self, broadcast: Broadcast) -> Tree:
        """Start the prototypes, too, at what came: the centres."""
        return {**super().delta_reference(broadcast), "prototypes": broadcast["prototypes"]}

    def global_model(self, client: Client, broadcast: Broadcast) -> Client:
        """Serve with the β that the weights were trained with, not with the next round's."""
        return _with_beta(super().global_model(client, broadcast), broadcast["served_beta_scale"])

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Start from the model's own global prototypes, drawn from N(0, 1).

        Raises:
            SettingsError: if the model has no ALP layer.
        """
        prototypes = _blocks(buffers, GLOBAL)
        if not prototypes:
            raise SettingsError(
                "fedali needs a model with ALP layers, such as hart_alp or har_cnn_alp; this one has none"
            )
        rounds = torch.zeros((), dtype=torch.int64)
        return {**super().server_init(params, buffers, training), "prototypes": prototypes, "rounds": rounds}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Send parameters and centres, and β's factor in the round to come and in the one that made them."""
        done, sent = int(_rounds(state)), {name: value for name, value in state.items() if name != "rounds"}
        like = next(iter(state["prototypes"].values()))
        scales = {"beta_scale": self._beta_scale(done + 1), "served_beta_scale": self._beta_scale(done)}
        return {**sent, **{name: like.new_tensor(scale) for name, scale in scales.items()}}

    def _beta_scale(self, number: int) -> float:
        # round 0 made the initial model, which no β has formed
        return 0.0 if 1 <= number <= self.beta_warmup_rounds else 1.0

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> FedAliSums:
        """Sum parameters; pool the prototypes, or let each draw its centre at once."""
        sent, before = update.tensors["prototypes"], FedAliSums.of(accumulator)
        folded = self.fold_params(before, update)
        if self.clustering == "streaming":
            streams = before.streams or {block: begin_stream(v) for block, v in state["prototypes"].items()}
            return replace(folded, streams={block: take_points(streams[block], v) for block, v in sent.items()})
        if self.clustering == "one_step":
            own = _centre_sums(sent, state["prototypes"])
            return replace(folded, step=own if before.step is None else map_tree(torch.add, before.step, own))
        pool = {block: (*before.pool.get(block, ()), value) for block, value in sent.items()}
        total = add_weighted(before.prototype_sum, sent, self.weight(update))
        return replace(folded, pool=pool, prototype_sum=total)

    @property
    def sum_incompatibility(self) -> str | None:
        """Refuse to pool single clients' prototypes, too."""
        if self.clustering != "one_step":
            return (
                f"the method {self.name} with clustering={self.clustering} clusters the single prototypes of all "
                "clients: set clustering=one_step, one step of Lloyd's a round, for which sums are enough"
            )
        return super().sum_incompatibility

    def summand(self, update: Update, broadcast: Broadcast, limits: SecureSettings) -> Tree:
        """Add, of the prototypes nearest to each centre, their sum and number."""
        limit = limits.max_value
        cut = {block: value.double().clamp(-limit, limit) for block, value in update.tensors["prototypes"].items()}
        own = _centre_sums(cut, broadcast["prototypes"])
        return {
            **super().summand(update, broadcast, limits),
            "centre_sums": own.totals,
            "centre_counts": own.counts,
        }

    def accumulated(self, state: Tree, total: Tree, clients: Sequence[str]) -> FedAliSums:
        """Return the sums of parameters, and those by centre."""
        sums = sums_of_changes(self.broadcast(state, "")["params"], total)
        step = CentreSums(total["centre_sums"], total["centre_counts"])
        return FedAliSums(weight=sums.weight, params=sums.params, step=step)

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Set P_g to k-means of the pool (K·G, d) with G clusters, from the weighted mean (algorithm 1, line 11)."""
        before, sums = state["prototypes"], FedAliSums.of(accumulator)
        if sums.streams is not None:
            centres = {block: stream.centres.to(before[block]) for block, stream in sums.streams.items()}
        elif sums.step is not None:
            centres = {block: _moved_centres(value, sums.step, block) for block, value in before.items()}
        else:
            start = mean_of(sums.prototype_sum, sums.weight, before)
            centres = {block: self._centres(sums.pool[block], start[block]) for block in start}
        return {**super().finish(state, accumulator), "prototypes": centres, "rounds": _rounds(state) + 1}

    def _centres(self, pool: Sequence[Tensor], start: Tensor) -> Tensor:
        # a client's prototypes began at the last centres in this order, and hardly any is nearer to another one
        hint = torch.arange(len(start), device=start.device).repeat(len(pool))
        return kmeans(
            pool, start, hint=hint, max_iterations=self.kmeans_iterations, tolerance=self.kmeans_tolerance
        ).centres


def _centre_sums(prototypes: Tensors, centres: Tensors) -> CentreSums:
    totals, counts = {}, {}
    for block, own in prototypes.items():
        like = centres[block]
        labels = nearest(own.to(like), like)
        totals[block] = torch.zeros_like(like, dtype=torch.float64).index_add(0, labels, own.double())
        counts[block] = torch.bincount(labels, minlength=len(like)).double()
    return CentreSums(totals, counts)


def _moved_centres(centres: Tensor, step: CentreSums, block: str) -> Tensor:
    """Return the mean of what is nearest to each centre (G, d); a centre that nothing is nearest to stays."""
    counts = step.counts[block][:, None].double()
    return torch.where(counts > 0, (step.totals[block] / counts.clamp(min=1)).to(centres), centres)


def _rounds(state: Tree) -> Tensor:
    """Return how many rounds the server has aggregated, ()."""
    if "rounds" not in state:
        raise RoundError(
            "the server's state counts no rounds: an earlier version of fedali wrote it, whose ALP layers sat "
            "elsewhere; create a new federation"
        )
    rounds: Tensor = state["rounds"]
    return rounds


def _with_beta(client: Client, scale: Tensor) -> Client:
    """Set β's factor () of every ALP layer."""
    scales = {block + BETA: scale for block in _blocks(client.buffers, BETA)}
    return client._replace(buffers=merge(client.buffers, scales))


def _blocks(buffers: Tensors, kind: str) -> Tensors:
    """Return {block prefix: prototypes (G, d)} of every ALP layer."""
    return {name.removesuffix(kind): value for name, value in buffers.items() if name.endswith(kind)}
