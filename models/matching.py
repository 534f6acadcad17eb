"""Tokens against prototypes: similarity, the Sinkhorn plan, assignment and the moving average.

Ek et al., FedAli, 2024, eq. 4 and 5 (see `models.alp`); Cuturi, 'Sinkhorn Distances', NeurIPS 2013, arXiv 1306.0895.
Pure functions of tensors without a branch on a value, so that torch.func.vmap lifts them over clients.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Match = Literal["plan", "cosine", "euclidean"]


def similarity(x: Tensor, prototypes: Tensor, match: str) -> Tensor:
    """Return (N, M): the cosine of tokens (N, d) and prototypes (M, d), or minus their distance for "euclidean"."""
    if match == "euclidean":
        squares = (x * x).sum(-1, keepdim=True) + (prototypes * prototypes).sum(-1)
        return -(squares - 2.0 * x @ prototypes.transpose(0, 1)).clamp(min=0.0).sqrt()
    return F.normalize(x, dim=-1) @ F.normalize(prototypes, dim=-1).transpose(0, 1)


def transport_plan(log_kernel: Tensor, valid: Tensor | None, iterations: int) -> Tensor:
    """Divide rows, then columns, of exp(log_kernel) (N, M) by their sums, `iterations` times; return the logarithm.

    valid (N,) bool or None: rows of padding come out as −inf and add to no column. Only the scaling vectors
    are iterated (two matrix-vector products each time), which leaves the same plan as dividing the matrix.
    The row maximum is subtracted first; the first division cancels it. float32 is safe for ε above 0.025.
    """
    if valid is not None:
        # A large negative number first would still leak into column sums of an all-padding batch; −inf cannot.
        log_kernel = log_kernel.masked_fill(~valid[:, None], -torch.inf)
    if iterations == 0:
        return log_kernel
    peak = log_kernel.amax(dim=1, keepdim=True)
    log_kernel = log_kernel - torch.where(peak > -torch.inf, peak, 0.0)
    kernel = log_kernel.exp()
    tiny = torch.finfo(kernel.dtype).tiny
    columns = torch.ones_like(kernel[0])
    for _ in range(iterations):
        rows = (kernel @ columns).clamp(min=tiny).reciprocal()
        columns = (rows @ kernel).clamp(min=tiny).reciprocal()
    return log_kernel + rows.log()[:, None] + columns.log()


def assign(scores: Tensor) -> Tensor:
    """Return the index (N,) of the largest entry of each row of scores (N, M), the lowest one on a tie."""
    return scores.argmax(dim=1)


def move_prototypes(
    prototypes: Tensor, x: Tensor, log_plan: Tensor, valid: Tensor | None, gamma: float
) -> Tensor:
    """Return γP + (1 − γ)x̄ (G, d), x̄ the plan-weighted mean of a prototype's top T tokens.

    prototypes (G, d), x (N, d), log_plan (N, G). T = max(1, ⌈N_valid/G⌉) is a tensor when there is padding:
    the top ⌈N/G⌉ are taken and ranks from T on get no weight, so a padded batch moves as the short one does.
    Without any real token the prototypes stay.
    """
    count, total = prototypes.shape[0], x.shape[0]
    largest = -(-total // count)
    entries, index = _top(log_plan, largest)
    if valid is None:
        weights = torch.softmax(entries, dim=1)
        return gamma * prototypes + (1.0 - gamma) * _weighted_mean(weights, x, index)
    real = valid.sum()
    taken = torch.clamp((real + count - 1) // count, min=1)
    rank = torch.arange(largest, device=x.device)
    weights = torch.softmax(entries.masked_fill(rank >= taken, -torch.inf), dim=1)
    moved = gamma * prototypes + (1.0 - gamma) * _weighted_mean(weights, x, index)
    return torch.where(real > 0, moved, prototypes)


def _top(log_plan: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Return the `largest` greatest entries of each column and their rows, (G, largest), ties by lowest row."""
    if largest == 1:
        entries, index = log_plan.max(dim=0)
        return entries[:, None], index[:, None]
    # topk leaves the order of ties open; a stable sort does not.
    entries, index = log_plan.transpose(0, 1).sort(dim=1, descending=True, stable=True)
    return entries[:, :largest], index[:, :largest]


def _weighted_mean(weights: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """Return Σ_t weights[g, t]·x[index[g, t]], (G, d)."""
    return (weights[:, None, :] @ x[index]).squeeze(1)
