"""FedPAC: aligned features, and for every client a head combined from all clients' heads by their estimated benefit.

J. Xu, X. Tong, S.-L. Huang: Personalized Federated Learning with Feature Alignment and Classifier Collaboration,
ICLR 2023, arXiv 2306.11867: local training section 4.1, combination weights eq. 8 to 11, algorithm 1. The weights are a
quadratic program over the probability simplex, solved by scipy's active-set solver of non-negative least squares.

The head trains at ten times the base's learning rate, as in the authors' code; the paper does not say so. λ multiplies
the mean squared error over the D features, as in their code; `distance="squared_sum"` is the undivided ‖e − P[y]‖².
Differs from the paper: negative eigenvalues of the quadratic form, which only rounding makes, are clipped to 0 (the
authors drop those under 0.01). A client that has not reported yet gets the mean of the heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from federation.aggregation import prototypes
from federation.aggregation.averaging import Accumulator, add_weighted, mean_of
from federation.aggregation.class_statistics import class_prototypes
from federation.aggregation.prototypes import Distance, ModelAndPrototypeSums, PredictBy, PredictClasses
from federation.method import Method, Traits
from federation.plan import TrainingConfig
from federation.records import (
    Batch,
    Broadcast,
    Client,
    Forward,
    Output,
    Phase,
    Tensors,
    TrainingStats,
    Tree,
    Update,
    UploadGroup,
)
from federation.records.head import check_head_lr_factor, is_base, is_head
from federation.records.tree import select
from federation.tasks.task import Task
from federation.training.forward import Network

NEGLIGIBLE = 1e-3
"""Combination weights below this become 0, and the others are renormalised."""


class ClientHead(NamedTuple):
    """What the combination of heads needs of one client."""

    head: Tensors
    weighted_means: Tensor  # h_k (C, D)
    variance: Tensor  # v_k ()


@dataclass(frozen=True, kw_only=True)
class FedPacSums(ModelAndPrototypeSums):
    """The sums of parameters and prototypes, and every client's head."""

    heads: Mapping[str, ClientHead] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FedPac(Method):
    """Base by FedAvg; head_i = Σ_j α_j head_j, α minimizing αᵀ(diag(v) + D_i)α over the simplex."""

    name: ClassVar[str] = "fedpac"
    traits: ClassVar[Traits] = Traits(personal_broadcast=True)
    needs_single_updates: ClassVar[str] = "combines a head for each client from the single heads of all"
    sums_at: ClassVar[frozenset[str]] = frozenset({"before", "after"})
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = {
        **Method.upload_groups,
        **prototypes.UPLOAD_GROUPS,
        "weighted_means": UploadGroup.VALUE,
        "variance": UploadGroup.OTHER,
    }

    lam: float = 1.0  # λ
    distance: Distance = "squared"
    predict_by: PredictBy = "head"
    predict_classes: PredictClasses = "all"
    head_epochs: int = 1
    head_lr_factor: float = 10.0
    """The head's learning rate over the base's, as in the authors' code and in that of FedAli's authors."""

    @property
    def has_global_model(self) -> bool:
        """Every client has its own."""
        return False

    def __post_init__(self) -> None:
        """Refuse what only prediction by prototypes can do, and a learning rate that does not train the head, too."""
        super().__post_init__()
        prototypes.check_prediction(self.name, self.predict_by, self.predict_classes)
        check_head_lr_factor(self.name, self.head_lr_factor)

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Make room for the prototypes that the client aligns with, and for its examples of each class."""
        return client._replace(memory=prototypes.client_memory(training, client.params))

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Take over the base and the combined head, and remember the prototypes."""
        client, _ = super().receive(client, broadcast)
        return prototypes.remember(client, broadcast), prototypes.received(broadcast)

    def phases(self, training: TrainingConfig) -> tuple[Phase, ...]:
        """Train the head alone, at its own learning rate, then the base alone."""
        return Phase(is_head, self.head_epochs, self.head_lr_factor), Phase(is_base, training.epochs)

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add λ times the distance to the prototype of each example's class."""
        output = network.train(params, buffers, batch.x, batch.mask)
        distance = prototypes.mean_distance(task.labelled_features(output, batch), round_state, self.distance)
        return task.mean_loss(output, batch) + self.lam * distance, output.buffers

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send the model, the prototypes, and the received base's h_k[c] = π_c · mean e of c, and its variance v_k."""
        client, sent = prototypes.upload(client, stats)
        before = stats.before
        examples = before.counts.sum().clamp(min=1)
        share = before.counts / examples  # π_c
        weighted = share[:, None] * class_prototypes(before, torch.float64)
        variance = (before.square.sum() / examples - (weighted**2).sum()) / examples
        measured = {"weighted_means": weighted.to(stats.dtype), "variance": variance.to(stats.dtype)}
        return client, {"params": client.params, **sent, **measured}

    @property
    def predicts_by_broadcast(self) -> bool:
        """By the prototypes, if it was asked to."""
        return self.predict_by == "prototype"

    def refresh(self, client: Client, broadcast: Broadcast) -> Client:
        """Predict with newer prototypes."""
        return prototypes.remember(client, broadcast)

    def predict(self, forward: Forward, client: Client, x: Tensor, mask: Tensor | None = None) -> Output:
        """Take the head, or the nearest global prototype."""
        output = forward(client.params, client.buffers, x, mask)
        return prototypes.predict(output, client.memory, self.predict_by, self.predict_classes)

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Start from the initial model, and know no prototype."""
        return {"params": params, **prototypes.empty_prototypes(training, params)}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Send the base with the client's own head."""
        own = {**state["params"], **state.get("heads", {}).get(client_id, {})}
        return {"params": own, "prototypes": state["prototypes"], "known": state["known"]}

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> FedPacSums:
        """Add to the means, and keep what the combination of heads needs of this client."""
        before, tensors = FedPacSums.of(accumulator), update.tensors
        client_head = ClientHead(select(tensors["params"], is_head), tensors["weighted_means"], tensors["variance"])
        sums = prototypes.fold(before.prototypes, update, by_examples=True)
        heads = {**before.heads, update.client_id: client_head}
        return replace(self.fold_params(before, update), prototypes=sums, heads=heads)

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Average base and prototypes, and combine a head for each client of the round."""
        sums = FedPacSums.of(accumulator)
        client_heads = sums.heads
        weights = combination_weights(
            torch.stack([client_head.weighted_means for client_head in client_heads.values()]),
            torch.stack([client_head.variance for client_head in client_heads.values()]),
        )
        heads = [client_head.head for client_head in client_heads.values()]
        combined = {name: _combine(heads, row) for name, row in zip(client_heads, weights, strict=True)}
        return {
            "params": self.combined(sums, state["params"]),
            **prototypes.finish(state, sums.prototypes),
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


Array = npt.NDArray[np.float64]


def minimize_on_simplex(form: Array) -> Array:
    """Return the α (K,) that minimizes αᵀQα with α ≥ 0, Σα = 1, for a positive semidefinite form Q (K, K).

    With Q = LᵀL, minimizing ‖Lβ‖² + (1ᵀβ − 1)² over β ≥ 0 gives α in its direction: for β = tα the best t leaves
    q/(1 + q), q = αᵀQα, which grows with q. So the program is one of non-negative least squares, which the active-set
    method of Lawson and Hanson solves exactly. Negative eigenvalues of Q, which only rounding makes, count as 0.
    """
    from scipy.optimize import (
        nnls,  # half a second of every start of a server, trainer and simulation, for FedPAC alone
    )

    values, vectors = np.linalg.eigh((form + form.T) / 2)
    values = np.clip(values, 0, None)
    # for q near 1 both terms of the sum keep their digits, whatever the scale of the form
    scale = np.trace(form) / len(form) ** 2 or 1.0
    root = np.sqrt(values / scale)[:, None] * vectors.T
    ones = np.ones((1, len(form)))
    target = np.zeros(len(form) + 1)
    target[-1] = 1.0
    direction, _ = nnls(np.vstack([root, ones]), target, maxiter=30 * len(form))
    weights: Array = direction / direction.sum()
    return weights
