"""Gradient dissimilarity (1/K) Σ‖∇L_k − ∇L‖² at the server's model: how much the clients disagree about where to go.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020, arXiv 1812.06127, section 5.3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from federation.records import Examples
from models.model import Model
from sim.analysis.finished import FinishedRun
from sim.analysis.section import Section

TEXT = """(1/K) Σ‖∇L_k − ∇L‖² at the server's model of the last round: L_k is the mean cross-entropy over client k's
training examples, dropout off, and ∇L = Σ n_k ∇L_k / Σ n_k. At 0 all clients would step alike; ‖∇L‖² beside it gives
the scale."""


class Dissimilarity(NamedTuple):
    """(1/K) Σ‖∇L_k − ∇L‖², ‖∇L‖², and each client's ‖∇L_k‖²."""

    value: float
    overall: float
    clients: Mapping[str, float]


def gradients(run: FinishedRun) -> Section:
    """Measure it over the clients that left a model.

    Raises:
        AnalysisError: if the method has no global model.
    """
    model = run.server
    found = dissimilarity(_gradients(run, model))
    values = {"dissimilarity": found.value, "overall_square": found.overall, "client_squares": dict(found.clients)}
    table = (
        ("(1/K) Σ‖∇L_k − ∇L‖²", f"{found.value:.4g}"),
        ("‖∇L‖²", f"{found.overall:.4g}"),
        ("clients", str(len(found.clients))),
    )
    return Section("gradients", "Gradient dissimilarity", TEXT, values, {}, table)


def _gradients(run: FinishedRun, model: Model) -> Iterable[tuple[str, int, Tensor]]:
    names = run.trained
    for done, name in enumerate(names):
        run.progress(f"gradient of client {name}", done, len(names))
        train = run.data.clients[name].train
        yield name, len(train.y), mean_gradient(model, train, run.settings.eval_batch)


def mean_gradient(model: Model, examples: Examples, batch: int) -> Tensor:
    """Gradient (parameters,) of the mean cross-entropy over all examples, summed in batches, in float64."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    total = torch.zeros(sum(value.numel() for value in parameters), dtype=torch.float64)
    for x, y in zip(torch.split(examples.x, batch), torch.split(examples.y, batch), strict=True):
        loss = cross_entropy(model(x).logits, y, reduction="sum") / len(examples.y)
        parts = torch.autograd.grad(loss, parameters, materialize_grads=True)
        total += torch.cat([part.double().flatten() for part in parts])
    return total


def dissimilarity(gradients_: Iterable[tuple[str, int, Tensor]]) -> Dissimilarity:
    """Take (client, examples n_k, ∇L_k) one by one; memory does not grow with clients.

    Σ‖g_k − g‖² = Σ‖g_k‖² − 2⟨g, Σ g_k⟩ + K‖g‖²; in float64 the cancellation costs nothing that shows.
    """
    squares: dict[str, float] = {}
    plain, weighted, examples = torch.zeros(()), torch.zeros(()), 0
    for name, count, gradient in gradients_:
        squares[name] = float(gradient @ gradient)
        plain, weighted, examples = plain + gradient, weighted + count * gradient, examples + count
    mean = weighted / examples
    overall, clients = float(mean @ mean), len(squares)
    value = (sum(squares.values()) - 2 * float(mean @ plain)) / clients + overall
    return Dissimilarity(max(value, 0.0), overall, squares)
