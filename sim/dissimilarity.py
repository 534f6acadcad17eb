"""Gradient dissimilarity (1/K) Σ‖∇L_k − ∇L‖² at one model: how much the clients disagree about where to go.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020, arXiv 1812.06127, section 5.3.3. A run measures it before each round on request, an analysis at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from federation.records import Client, Examples, Forward


class Dissimilarity(NamedTuple):
    """(1/K) Σ‖∇L_k − ∇L‖², ‖∇L‖², and each client's ‖∇L_k‖²."""

    value: float
    overall: float
    clients: Mapping[str, float]


def mean_gradient(evaluate: Forward, model: Client, examples: Examples, batch: int) -> Tensor:
    """Gradient (parameters,) of the mean cross-entropy over all examples, summed in batches, in float64.

    `evaluate` is the network in evaluation mode, so that dropout adds no noise.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in model.params.items()}
    total = torch.zeros((), dtype=torch.float64)
    for x, y in zip(torch.split(examples.x, batch), torch.split(examples.y, batch), strict=True):
        loss = cross_entropy(evaluate(leaves, model.buffers, x, None).logits, y, reduction="sum") / len(examples.y)
        parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        total = total + torch.cat([part.double().flatten() for part in parts])
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
