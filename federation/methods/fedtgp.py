"""FedTGP: FedProto whose global prototypes are trained on the server, to keep classes a margin apart.

J. Zhang, Y. Liu, Y. Hua, J. Cao: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning
for Data and Model Heterogeneity in Federated Learning, AAAI 2024, arXiv 2401.03230: the trainable prototypes, and
the contrastive loss with its adaptive margin.

The server has an embedding of each class and two dense layers with ReLU between them, P[c] = F(embedding[c]). In each
round it takes S epochs of SGD over all prototypes p_k[c] that came, each once whatever its examples, with
−log( e^{−(d_c + δ)} / (e^{−(d_c + δ)} + Σ_{c′ ≠ c} e^{−d_{c′}}) ), d_{c′} = ‖p_k[c] − P[c′]‖₂. The margin δ is the
largest of the distances between the mean prototype of a class and that of the nearest other one, at most `max_margin`
τ. Clients and their prediction are FedProto's.
Compared with the authors' code (github.com/TsingZ0/FedTGP and HtFLlib): S = 100 or 1000 epochs, batches of 10 and the
clients' learning rate, λ 1 to 10 by the data set. Differs from their code: a class that no client has had is not
predicted, though F gives it a prototype; a stale upload counts less; with one class known there is no distance, and δ =
τ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, one_hot

from federation.aggregation import prototypes
from federation.aggregation.averaging import Accumulator
from federation.aggregation.prototypes import PrototypeSums
from federation.errors import SettingsError
from federation.methods.fedproto import FedProto
from federation.plan import TrainingConfig
from federation.records import Tensors, Tree, Update
from federation.records.tree import map_tree
from federation.seeds import seed_for

PRIVATE = ("generator", "rounds")
"""What of the state stays on the server."""
_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class TrainableSums(PrototypeSums):
    """The clients' prototypes (P, D), their classes (P,) and how much each counts (P,), and the means of classes."""

    rows: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()


@dataclass(frozen=True, kw_only=True)
class FedTgp(FedProto):
    """CE + λ · mse(e, P[y]); P trained on the server with a margin between classes."""

    name: ClassVar[str] = "fedtgp"
    needs_single_updates: ClassVar[str] = "trains its prototypes on the single prototypes of all"

    server_epochs: int = 100  # S
    server_lr: float = 0.01
    server_batch: int = 10
    max_margin: float = 100.0  # τ

    def __post_init__(self) -> None:
        """Refuse what FedProto has and this method cannot, and numbers that train nothing.

        Raises:
            SettingsError: naming the option.
        """
        super().__post_init__()
        if self.is_frozen or self.keeps_uploads:
            raise SettingsError(
                f"{self.name} trains its prototypes on the round's: leave backbone at trained and average_over at "
                f"auto, or use fedproto"
            )
        if self.server_epochs < 0 or self.server_batch < 1 or not 0 < self.server_lr < float("inf"):
            raise SettingsError(
                f"{self.name}: server_epochs={self.server_epochs}, server_batch={self.server_batch}, "
                f"server_lr={self.server_lr}: expected 0 or more epochs, batches of 1 or more, and a rate above 0"
            )
        if not 0 <= self.max_margin < float("inf"):
            raise SettingsError(f"{self.name}: max_margin={self.max_margin}: expected 0 or more, such as 100")

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Draw F from the plan's seed, as torch draws an embedding and dense layers; know no prototype."""
        start = super().server_init(params, buffers, training)
        generator = _initial_generator(training, next(iter(params.values())))
        return {**start, "generator": generator, "rounds": torch.tensor(0)}

    def broadcast(self, state: Tree, client_id: str) -> Tree:
        """Send the prototypes; what makes them stays on the server."""
        return {name: value for name, value in state.items() if name not in PRIVATE}

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> TrainableSums:
        """Keep a client's prototypes, and add them to the plain means of classes."""
        before = TrainableSums.of(accumulator)
        sums = prototypes.fold(before.prototypes, update, by_examples=False)
        classes = torch.nonzero(update.tensors["counts"] > 0)[:, 0]
        rows = update.tensors["prototypes"][classes]
        entry = (rows, classes, torch.full((len(classes),), update.discount, dtype=rows.dtype, device=rows.device))
        return replace(before, weight=before.weight + update.discount, prototypes=sums, rows=(*before.rows, entry))

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Train F on the round's prototypes; P are what it then gives for the classes that any client has had."""
        sums = TrainableSums.of(accumulator)
        means = prototypes.finish(state, sums.prototypes)
        has_prototypes = sums.prototypes is not None and sums.prototypes.weight > 0
        margin = adaptive_margin(means["prototypes"], means["known"] * has_prototypes, self.max_margin)
        rows, classes, weights = (torch.cat(parts) for parts in zip(*sums.rows, strict=True))
        generator = self._trained(state, rows.to(means["prototypes"]), classes, weights.to(means["prototypes"]), margin)
        known = means["known"]
        made = torch.where(known[:, None] > 0, _generated(generator), 0.0)
        return {"prototypes": made, "known": known, "generator": generator, "rounds": state["rounds"] + 1}

    def _trained(self, state: Tree, rows: Tensor, classes: Tensor, weights: Tensor, margin: Tensor) -> Tensors:
        shuffle = torch.Generator().manual_seed(seed_for(int(state["rounds"]), self.name))
        generator: Tensors = map_tree(torch.clone, state["generator"])
        for _ in range(self.server_epochs):
            order = torch.randperm(len(rows), generator=shuffle).to(rows.device)
            for part in torch.split(order, self.server_batch):
                with torch.enable_grad():
                    leaves = {name: value.detach().requires_grad_() for name, value in generator.items()}
                    loss = _contrast(_generated(leaves), rows[part], classes[part], weights[part], margin)
                    slopes = torch.autograd.grad(loss, list(leaves.values()))
                generator = {
                    name: value - self.server_lr * slope
                    for (name, value), slope in zip(generator.items(), slopes, strict=True)
                }
        return generator


def adaptive_margin(means: Tensor, known: Tensor, limit: float) -> Tensor:
    """Return δ (): the largest distance of a class's mean (C, D) to its nearest other one, `limit` at the most."""
    apart = torch.cdist(means, means)
    others = (known[:, None] > 0) & (known[None, :] > 0) & ~torch.eye(len(means), dtype=torch.bool, device=means.device)
    nearest = torch.where(others, apart, torch.inf).amin(1)
    nearest = torch.where(torch.isfinite(nearest), nearest, -torch.inf).amax()
    return torch.where(torch.isfinite(nearest), nearest, limit).clamp(max=limit)


def _contrast(made: Tensor, rows: Tensor, classes: Tensor, weights: Tensor, margin: Tensor) -> Tensor:
    squared = (rows**2).sum(1, keepdim=True) - 2 * rows @ made.T + (made**2).sum(1)
    # at a distance of 0 the root has no slope
    distance = squared.clamp(min=_TINY).sqrt() + one_hot(classes, len(made)) * margin
    return (cross_entropy(-distance, classes, reduction="none") * weights).sum() / weights.sum()


def _generated(generator: Tensors) -> Tensor:
    hidden = torch.relu(linear(generator["embedding"], generator["hidden.weight"], generator["hidden.bias"]))
    return linear(hidden, generator["output.weight"], generator["output.bias"])


def _initial_generator(training: TrainingConfig, like: Tensor) -> Tensors:
    draw, width = torch.Generator().manual_seed(seed_for(training.seed, "fedtgp")), training.feature_dim
    bound = width**-0.5
    shapes = {"hidden.weight": (width, width), "hidden.bias": (width,)}
    shapes |= {name.replace("hidden", "output"): shape for name, shape in shapes.items()}
    drawn = {"embedding": torch.randn((training.classes, width), generator=draw)}
    drawn |= {name: (2 * torch.rand(shape, generator=draw) - 1) * bound for name, shape in shapes.items()}
    return {name: value.to(like) for name, value in drawn.items()}
