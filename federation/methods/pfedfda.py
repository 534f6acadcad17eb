"""pFedFDA: the head is the Bayes classifier of Gaussian features, interpolated between the client's and everyone's.

C. Mclaughlin, L. Su: Personalized Federated Learning via Feature Distribution Adaptation, NeurIPS 2024,
arXiv 2411.00329: the generative classifier, the interpolation of local and global estimates.

All classes share a covariance Σ (D, D), each has a mean μ[c] (D,): logits e·Σ⁻¹μ[c] − ½ μ[c]·Σ⁻¹μ[c] + log π_c, which
is linear in the features e. A client trains its base under the head of the global (μ, Σ) and its own shares of classes
π, without moving that head; then estimates μ_k, Σ_k of its features and sends
β μ_k + (1 − β) μ and β′ Σ_k + (1 − β′) Σ, with the β, β′ in [0, 1] that minimize the cross-entropy of two folds, each
classified by the estimates of the other. The server averages both, and the base, by examples.
Compared with the authors' code (github.com/cj-mclaughlin/pFedFDA). As there, a multiple of the identity is added to
Σ_k, Σ gets a share 1e-4 of its mean variance, global means begin uniform in [0, 1] and Σ as the identity, and a class
without examples has the global mean. Their multiple is 1 (`shrink=1`; they also add 1e-4 to every entry): with the
small features of `har_cnn` that outweighs their variance, and shares of classes decide (MotionSense, 4 rounds, 8
clients, seed 0: 62 instead of 92), so the default is 0.01. Differs from their code: features are those of the trained
base, of the last 1,024 examples, where it takes them from every step of training; a class's examples go to the folds in
turn instead of at random; β is sought on a grid of tenths by turns, not by L-BFGS; a client knows its π after its first
round, in which all classes weigh alike. A client serves with its trained base and the head of what it sent; they score
the server's base with estimates made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from federation.aggregation import class_statistics
from federation.aggregation.averaging import Accumulator, MeanSums, add_weighted, mean_of
from federation.errors import SettingsError
from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import (
    Batch,
    Broadcast,
    Client,
    ExampleSums,
    Output,
    Phase,
    Tensors,
    TrainingStats,
    Tree,
    Update,
    UploadGroup,
)
from federation.records.head import check_dense, is_base, with_linear_head
from federation.seeds import generator
from federation.tasks.task import Task
from gaitway.tasks import TargetKind

GAUSSIANS = ("means", "covariance")
_SHARE = 1e-4
"""Of the mean variance in a covariance that is inverted, and of each class's share before they are made to sum to 1."""
_GRID = 11
"""Values of β that are tried, 0 to 1."""
_SWEEPS = 2


class Gaussians(NamedTuple):
    """A normal distribution of the features of each class, of one covariance."""

    means: Tensor  # (C, D)
    covariance: Tensor  # (D, D)

    def towards(self, other: Gaussians, of_means: Tensor, of_covariance: Tensor) -> Gaussians:
        """Return so much of these estimates, and the rest of the others."""
        mixed = (torch.lerp(b, a, beta) for a, b, beta in zip(self, other, (of_means, of_covariance), strict=True))
        return Gaussians(*mixed)


@dataclass(frozen=True, kw_only=True)
class GaussianSums(MeanSums):
    """The sums of bases, and of the estimates."""

    gaussians: Tensors | None = None


@dataclass(frozen=True, kw_only=True)
class PFedFda(Method):
    """Base by FedAvg under a Gaussian head; (μ, Σ) = mean of β (μ_k, Σ_k) + (1 − β) (μ, Σ)."""

    name: ClassVar[str] = "pfedfda"
    sums_at: ClassVar[frozenset[str]] = frozenset({"after"})
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = {
        **Method.upload_groups,
        "means": UploadGroup.VALUE,
        "covariance": UploadGroup.SQUARED_VALUE,
    }

    shrink: float = 0.01  # times the identity, added to a client's covariance
    one_beta: bool = False  # whether means and covariance are interpolated alike

    def __post_init__(self) -> None:
        """Refuse a covariance that cannot be inverted.

        Raises:
            SettingsError: naming the option.
        """
        super().__post_init__()
        if not 0 < self.shrink < float("inf"):
            raise SettingsError(f"{self.name}: shrink={self.shrink}: expected a number above 0, such as 0.01")

    @property
    def solves_heads(self) -> bool:
        """Whether heads come of features: the Bayes classifier's do."""
        return True

    @property
    def program_incompatibility(self) -> str | None:
        """A client's head is solved, for which ONNX has no operator."""
        return f"the method {self.name} solves linear equations on the device, for which ONNX has no operator"

    def task_incompatibility(self, task: Task) -> str | None:
        """Want one class an example."""
        if task.target is TargetKind.CLASS:
            return None
        return (
            f"the method {self.name} models the features of one class per example, but the task {task.name} learns "
            f"another target; use a method that shares only parameters, such as fedavg"
        )

    # ---- client half

    def shared(self, name: str) -> bool:
        """Share the base; the head is computed."""
        return is_base(name)

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Know no example of any class."""
        check_dense(client.params, training.classes, self.name)
        like = next(iter(client.params.values()))
        return client._replace(memory={"counts": like.new_zeros(training.classes)})

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Take over the base, under the head of the global estimates and the client's own shares of classes."""
        client, _ = super().receive(client, broadcast)
        common = {name: broadcast[name] for name in GAUSSIANS}
        return _with_head(client, Gaussians(**common), client.memory["counts"]), common

    def phases(self, training: TrainingConfig) -> tuple[Phase, ...]:
        """Train the base; the head stays."""
        return (Phase(is_base, training.epochs),)

    def empty_sums(self, training: TrainingConfig, like: Tensor, clients: tuple[int, ...] = ()) -> ExampleSums:
        """Return the features of no example."""
        return class_statistics.empty_sample(training, like, clients)

    def add_sums(
        self, task: Task, training: TrainingConfig, output: Output, batch: Batch, before: ExampleSums
    ) -> ExampleSums:
        """Keep a batch's features."""
        return class_statistics.added(before, task.labelled_features(output, batch))

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send the base and the interpolated estimates, whose head the client keeps."""
        common, counts = Gaussians(**round_state), stats.after.class_counts
        features, classes = class_statistics.rows_of_classes(stats.after)
        own = estimate(features, classes, common.means, self.shrink)
        betas = self.betas(features, classes, common, counts)
        mixed = own.towards(common, *betas)
        client, tensors = super().upload(client._replace(memory={"counts": counts}), round_state, stats)
        return _with_head(client, mixed, counts), {**tensors, **mixed._asdict()}

    def betas(self, features: Tensor, classes: Tensor, common: Gaussians, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the β of means and of the covariance, () each, that two folds choose; 0 where there are none.

        A class with one example is in no fold.
        """
        turn = (classes.cumsum(0) * classes).sum(1)
        kept = (classes * (classes.sum(0) > 1)).sum(1)
        folds = [classes * (kept * (turn % 2 == parity))[:, None] for parity in (0, 1)]
        fits = [estimate(features, fold, common.means, self.shrink) for fold in folds]

        def loss(of_means: Tensor, of_covariance: Tensor) -> Tensor:
            parts = []
            for fit, held_out in zip(fits, reversed(folds), strict=True):
                weight, bias = linear_classifier(fit.towards(common, of_means, of_covariance), counts)
                chances = torch.log_softmax(features @ weight.T + bias, 1)
                parts.append(-(chances * held_out).sum() / held_out.sum().clamp(min=1))
            return torch.stack(parts).sum()

        found = [features.new_full((), 0.5), features.new_full((), 0.5)]
        grid = torch.linspace(0, 1, _GRID, dtype=features.dtype, device=features.device)
        for part in (0, 1) * _SWEEPS:
            tried = [[beta if self.one_beta or n == part else found[n] for n in (0, 1)] for beta in grid]
            best = grid[torch.stack([loss(*pair) for pair in tried]).argmin()]
            found = [best if self.one_beta or n == part else found[n] for n in (0, 1)]
        is_any = (kept.sum() > 0).to(features)
        return found[0] * is_any, found[1] * is_any

    def delta_reference(self, broadcast: Broadcast) -> Tree:
        """Start the estimates, too, at what came."""
        return {**super().delta_reference(broadcast), **{name: broadcast[name] for name in GAUSSIANS}}

    def global_model(self, client: Client, broadcast: Broadcast) -> Client:
        """Take all classes for equally likely."""
        nobody = client._replace(memory={"counts": torch.zeros_like(client.memory["counts"])})
        return self.receive(nobody, broadcast)[0]

    # ---- server half

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Start from the initial base, means drawn from [0, 1] by the plan's seed, and the identity."""
        check_dense(params, training.classes, self.name)
        if training.batch_size > class_statistics.CAPACITY:
            raise SettingsError(
                f"{self.name} keeps the features of {class_statistics.CAPACITY} examples: batch={training.batch_size} "
                f"is more; use smaller batches"
            )
        like, shape = next(iter(params.values())), (training.classes, training.feature_dim)
        means = torch.from_numpy(generator(training.seed, self.name).random(shape)).to(like)
        covariance = torch.eye(training.feature_dim, dtype=like.dtype, device=like.device)
        return {**super().server_init(params, buffers, training), "means": means, "covariance": covariance}

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> GaussianSums:
        """Add a client's base, and its estimates."""
        before, gaussians = GaussianSums.of(accumulator), {name: update.tensors[name] for name in GAUSSIANS}
        sums = add_weighted(before.gaussians, gaussians, self.weight(update))
        return replace(self.fold_params(before, update), gaussians=sums)

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Average both."""
        sums = GaussianSums.of(accumulator)
        means = mean_of(sums.gaussians, sums.weight, {name: state[name] for name in GAUSSIANS})
        return {"params": self.combined(sums, state["params"]), **means}


def estimate(features: Tensor, classes: Tensor, otherwise: Tensor, shrink: float) -> Gaussians:
    """Return means and common covariance of features (n, D) whose classes (n, C) are 1, or 0 for rows that count not.

    A class without rows has the mean of `otherwise` (C, D).
    """
    counts = classes.sum(0)
    means = torch.where(counts[:, None] > 0, classes.T @ features / counts.clamp(min=1)[:, None], otherwise)  # (C, D)
    centred = (features - classes @ means) * classes.sum(1, keepdim=True)
    scatter = centred.T @ centred / (counts.sum() - 1).clamp(min=1)
    return Gaussians(means, scatter + shrink * torch.eye(len(scatter), dtype=scatter.dtype, device=scatter.device))


def linear_classifier(gaussians: Gaussians, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight (C, D) and bias (C,) of the Bayes classifier; equal shares of classes where all counts are 0."""
    means, covariance = gaussians
    size = len(covariance)
    eye = torch.eye(size, dtype=covariance.dtype, device=covariance.device)
    covariance = (1 - _SHARE) * covariance + _SHARE * covariance.diagonal().mean() * eye
    weight = torch.linalg.solve(covariance, means.T).T
    share = counts / counts.sum().clamp(min=1) + _SHARE
    return weight, (share / share.sum()).log() - (means * weight).sum(1) / 2


def _with_head(client: Client, gaussians: Gaussians, counts: Tensor) -> Client:
    return client._replace(params=with_linear_head(client.params, *linear_classifier(gaussians, counts)))
