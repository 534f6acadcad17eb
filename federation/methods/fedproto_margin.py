"""FedProto of Michieli and Ozay: clients whose class prototypes deviate less weigh more.

U. Michieli, M. Ozay: Prototype Guided Federated Learning of Visual Feature Representations, 2021, arXiv 2105.08982:
prototypes eq. 4, margins eq. 5 to 7, LPM eq. 8, APM eq. 9, attention eq. 11 to 13, algorithm 1.
Tan et al.'s FedProto is `fedproto`.

Differs from the paper: it does not say what the ablation 'd⁺ only' passes to the sigmoid; here it is −d⁺, so that, as
with the margin, a client that deviates less weighs more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from federation.aggregation import prototypes
from federation.aggregation.averaging import Accumulator, MeanSums, add_weighted, mean_of
from federation.aggregation.class_statistics import class_prototypes
from federation.aggregation.prototypes import PrototypeSums, min_max_normalized
from federation.method import Method, Traits, Weights
from federation.plan import TrainingConfig
from federation.records import Client, Tensors, TrainingStats, Tree, Update, UploadGroup


@dataclass(frozen=True, kw_only=True)
class MarginSums(PrototypeSums):
    """The sums of prototypes, and those of parameters by each kind of attention."""

    means: Mapping[str, MeanSums] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FedProtoMargin(Method):
    """w ← Σ a_k w_k, a by the margins between prototypes before and after training (LPM) and over rounds (APM)."""

    name: ClassVar[str] = "fedproto_margin"
    averages_parameters: ClassVar[bool] = False
    traits: ClassVar[Traits] = Traits(uses_partial_work=True)
    needs_single_updates: ClassVar[str] = "weighs each client by the margins of its own prototypes"
    sums_at: ClassVar[frozenset[str]] = frozenset({"before", "after"})
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = {
        **Method.upload_groups,
        **prototypes.UPLOAD_GROUPS,
        "margins": UploadGroup.OTHER,
    }

    margins: Literal["both", "lpm", "apm"] = "both"
    distance: Literal["margin", "positive"] = "margin"

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send the parameters, the prototypes after training, and the local margins μ[c]."""
        client, tensors = super().upload(client, round_state, stats)
        before, after = (
            min_max_normalized(class_prototypes(part, stats.dtype)) for part in (stats.before, stats.after)
        )
        present = (stats.after.counts > 0).to(after.dtype)
        margin = class_margins(before, after, present, self.distance)
        return client, {**tensors, **prototypes.uploaded(stats.after, stats.dtype), "margins": margin}

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Start from the initial model, and know no prototype."""
        return {**super().server_init(params, buffers, training), **prototypes.empty_prototypes(training, params)}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Send the parameters; the aggregate prototypes stay on the server."""
        return {"params": state["params"]}

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> MarginSums:
        """Add one client to a running mean for each attention that counts this round, and to the prototypes'."""
        before, tensors = MarginSums.of(accumulator), update.tensors
        means = dict(before.means)
        for kind, weight in self.attention(state, update).items():
            so_far = means.get(kind, MeanSums())
            params = add_weighted(so_far.params, tensors["params"], weight)
            means[kind] = MeanSums(weight=so_far.weight + weight, params=params)
        ours = update._replace(tensors={**tensors, "prototypes": min_max_normalized(tensors["prototypes"])})
        sums = prototypes.fold(before.prototypes, ours, by_examples=True)
        return MarginSums(weight=before.weight + self.weight(update), means=means, prototypes=sums)

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Average the parameters by each attention, then those means (eq. 13, 14), and the prototypes (eq. 10)."""
        sums = MarginSums.of(accumulator)
        means = [mean_of(one.params, one.weight, one.params or {}) for one in sums.means.values()]
        params = {
            name: torch.stack([mean[name] for mean in means]).mean(0).to(value.dtype)
            for name, value in state["params"].items()
        }
        return {"params": params, **prototypes.finish(state, sums.prototypes)}

    def attention(self, state: Tree, update: Update) -> dict[str, float]:
        """Return a client's unnormalised weight by its examples in the first round, then by each margin."""
        if not bool(state["known"].any()):
            return {"examples": self.weight(update)}
        wanted = ("lpm", "apm") if self.margins == "both" else (self.margins,)
        return {kind: update.discount * float(torch.sigmoid(self._total(kind, state, update))) for kind in wanted}

    def client_weights(self, state: Tree, updates: Sequence[Update]) -> Weights:
        """Return a = v/Σv by kind of attention, and "combined", by which the parameters were averaged (eq. 13)."""
        weights = {update.client_id: self.attention(state, update) for update in updates}
        kinds = next(iter(weights.values()), {})
        shares: Weights = {}
        for kind in kinds:
            total = sum(each[kind] for each in weights.values())
            shares[kind] = {name: each[kind] / total for name, each in weights.items()}
        if len(kinds) > 1:
            shares["combined"] = {name: sum(shares[kind][name] for kind in kinds) / len(kinds) for name in weights}
        return shares

    def _total(self, kind: str, state: Tree, update: Update) -> Tensor:
        if kind == "lpm":
            total: Tensor = update.tensors["margins"].sum()
            return total
        present = (update.tensors["counts"] > 0).to(state["known"].dtype) * state["known"]
        ours = min_max_normalized(update.tensors["prototypes"])
        return class_margins(ours, state["prototypes"], present, self.distance).sum()


def class_margins(ours: Tensor, others: Tensor, present: Tensor, distance: str) -> Tensor:
    """Return μ[c] (C,) of one set of normalised prototypes (C, D) against another; `present` (C,) is 1 where compared.

    d⁺[c] = ‖p̂_i[c] − p̂_j[c]‖, d⁻[c] = mean of ‖p̂_i[c] − p̂_j[c′]‖ over the other present classes c′, and
    μ[c] = (d⁻ − d⁺) / (d⁻ + d⁺) (eq. 5 to 7); 0 with fewer than two classes, and where both distances vanish.
    """
    squared = ((ours[:, None] - others[None]) ** 2).sum(-1)
    away = torch.where(squared > 0, squared, 1.0).sqrt() * (squared > 0)
    same = away.diagonal(dim1=-2, dim2=-1)
    if distance == "positive":
        return -same * present
    shared = present.sum()
    other = ((away * present).sum(-1) - same * present) / (shared - 1).clamp(min=1)
    span = other + same
    margin = torch.where(span > 0, (other - same) / torch.where(span > 0, span, 1.0), 0.0)
    return margin * present * (shared >= 2)
