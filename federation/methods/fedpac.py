"""FedPAC: aligned features, and for every client a head combined from all clients' heads by their estimated benefit.

J. Xu, X. Tong, S.-L. Huang: Personalized Federated Learning with Feature Alignment and Classifier Collaboration,
ICLR 2023, arXiv 2306.11867: local training section 4.1, combination weights eq. 8 to 11, algorithm 1.

The head trains at ten times the base's learning rate, as in the authors' code; the paper does not say so.
Differs from the paper: negative eigenvalues of the quadratic form, which only rounding makes, are clipped to 0 (the
authors drop those under 0.01). A client that has not reported yet gets the mean of the heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from federation.aggregation.averaging import add_weighted, mean_of
from federation.aggregation.simplex_qp import minimize_on_simplex
from federation.head import HEAD_LR_FACTOR, check_head_lr_factor, is_base, is_head
from federation.methods.fedpr import FedPr
from federation.plan import TrainingConfig
from federation.records import Client, Phase, Tensors, TrainingStats, Tree, Update
from federation.training.losses import class_prototypes
from federation.tree import select

NEGLIGIBLE = 1e-3
"""Combination weights below this become 0, and the others are renormalised."""


@dataclass(frozen=True, kw_only=True)
class FedPac(FedPr):
    """Base by FedAvg; head_i = Σ_j α_j head_j, α minimizing αᵀ(diag(v) + D_i)α over the simplex."""

    name: ClassVar[str] = "fedpac"
    has_global_model: ClassVar[bool] = False
    personal_broadcast: ClassVar[bool] = True
    weighs_prototypes: ClassVar[bool] = True
    class_stats_at: ClassVar[frozenset[str]] = frozenset({"before", "after"})

    predict_by: Literal["prototype", "head"] = "head"
    head_epochs: int = 1
    head_lr_factor: float = HEAD_LR_FACTOR

    def __post_init__(self) -> None:
        """Refuse a learning rate that does not train the head, too."""
        super().__post_init__()
        check_head_lr_factor(self.name, self.head_lr_factor)

    def phases(self, training: TrainingConfig) -> tuple[Phase, ...]:
        """Train the head alone, at its own learning rate, then the base alone."""
        return Phase(is_head, self.head_epochs, self.head_lr_factor), Phase(is_base, training.epochs)

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send the model, the prototypes, and the received base's h_k[c] = π_c · mean e of c, and its variance v_k."""
        client, tensors = super().upload(client, round_state, stats)
        before = stats.before
        examples = before.counts.sum().clamp(min=1)
        share = before.counts / examples  # π_c
        weighted = share[:, None] * class_prototypes(before)
        variance = (before.square.sum() / examples - (weighted**2).sum()) / examples
        return client, {**tensors, "weighted_means": weighted, "variance": variance}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Send the base with the client's own head."""
        own = {**state["params"], **state.get("heads", {}).get(client_id, {})}
        return {"params": own, "prototypes": state["prototypes"], "known": state["known"]}

    def fold(self, state: Tree, accumulator: Any, update: Update) -> Any:
        """Add to the means, and keep what the combination of heads needs of this client."""
        tensors = update.tensors
        mine = (select(tensors["params"], is_head), tensors["weighted_means"], tensors["variance"])
        heads = {**(accumulator or {}).get("heads", {}), update.client_id: mine}
        return {**super().fold(state, accumulator, update), "heads": heads}

    def finish(self, state: Tree, accumulator: Any) -> Tree:
        """Average base and prototypes, and combine a head for each client of the round."""
        came = accumulator["heads"]
        heads = [head for head, _, _ in came.values()]
        weights = combination_weights(
            torch.stack([means for _, means, _ in came.values()]), torch.stack([v for _, _, v in came.values()])
        )
        combined = {name: _combine(heads, row) for name, row in zip(came, weights, strict=True)}
        return {
            **super().finish(state, accumulator),
            "heads": dict(sorted({**state.get("heads", {}), **combined}.items())),
        }


def combination_weights(weighted_means: Tensor, variances: Tensor) -> Tensor:
    """Return every client's weights (K, K), a row each, from h (K, C, D) and v (K,) (eq. 10 and 11)."""
    h, v = weighted_means.flatten(1).double().cpu(), variances.double().cpu().clamp(min=0)
    gram = h @ h.T
    rows = []
    for i in range(len(h)):
        # ⟨h_i − h_j, h_i − h_k⟩ from the Gram matrix: K products of C·D numbers for all of the K forms
        distances = gram[i, i] - gram[i][:, None] - gram[i][None, :] + gram
        weights = torch.from_numpy(minimize_on_simplex((torch.diag(v) + distances).numpy()))
        kept = torch.where(weights < NEGLIGIBLE, 0.0, weights)
        rows.append(kept / kept.sum())
    return torch.stack(rows)


def _combine(heads: list[Tensors], weights: Tensor) -> Tensors:
    sums: Tensors | None = None
    for head, weight in zip(heads, weights.tolist(), strict=True):
        if weight:
            sums = add_weighted(sums, head, weight)
    return mean_of(sums or {}, 1.0, heads[0])
