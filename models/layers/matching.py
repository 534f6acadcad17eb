"""Matching of tokens and prototypes: similarity, the Sinkhorn plan, assignment and the moving average.

Ek et al., FedAli, 2024, eq. 4 and 5 (see `models.layers.alp`).
Cuturi, 'Sinkhorn Distances', NeurIPS 2013, arXiv 1306.0895.
Pure functions of tensors without a branch on a value, so that torch.func.vmap lifts them over clients.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.layers.exporting import is_exporting, reads_bytes

KEYS = {True: 1 << 17, False: 1 << 22}
"""64-bit keys sorted at a time on the CPU, whose cache holds as many, and elsewhere, where launches cost more."""


def similarity(x: Tensor, prototypes: Tensor, match: str) -> Tensor:
    """Return (N, M): the cosine of tokens (N, d) and prototypes (M, d); for "euclidean" minus their distance."""
    if match == "euclidean":
        squares = (x * x).sum(-1, keepdim=True) + (prototypes * prototypes).sum(-1)
        return -(squares - 2.0 * x @ prototypes.transpose(0, 1)).clamp(min=0.0).sqrt()
    return F.normalize(x, dim=-1) @ F.normalize(prototypes, dim=-1).transpose(0, 1)


def transport_plan(cosine: Tensor, epsilon: float, iterations: int, valid: Tensor | None) -> Tensor:
    """Divide rows, then columns, of exp(cosine/ε) (N, M) by their sums, `iterations` times.

    The plan is made in the memory of `cosine`, so that there is one (N, M) matrix and no second.
    valid (N,) or None: the rows of padding come out as zero and add to no column. Only the scaling vectors
    are iterated, two matrix-vector products each time, which leaves the same plan as dividing the matrix.
    The row maximum is subtracted first (the first division cancels it); float32 holds for ε above 0.025.
    """
    kernel = cosine.sub_(cosine.amax(dim=1, keepdim=True)).mul_(1.0 / epsilon).exp_()
    tiny = torch.finfo(kernel.dtype).tiny
    columns = torch.ones_like(kernel[0])
    for _ in range(iterations):
        rows = (kernel @ columns).clamp(min=tiny).reciprocal()
        if valid is not None:
            rows = rows * valid
        columns = (rows @ kernel).clamp(min=tiny).reciprocal()
    return kernel.mul_(rows[:, None]).mul_(columns)


def assign(scores: Tensor) -> Tensor:
    """Return the index (N,) of the largest entry of each row of scores (N, M), the lowest one on a tie."""
    return scores.argmax(dim=1)


def real_weight(weight: Tensor, valid: Tensor | None) -> Tensor:
    """Return weights (G, T) of each prototype's top tokens, 0 beyond the max(1, ⌈N/G⌉) that N real tokens give.

    With padding that number is a tensor, so a padded batch moves as the short one does.
    """
    if valid is None:
        return weight
    count = weight.shape[0]
    taken = torch.clamp((valid.sum() + count - 1) // count, min=1)
    return weight * (torch.arange(weight.shape[1], device=weight.device) < taken)


def move_to_mean(prototypes: Tensor, x: Tensor, weight: Tensor, index: Tensor, gamma: float) -> Tensor:
    """Return γP + (1 − γ)x̄ (G, d), x̄ the mean of tokens x (N, d) at index (G, T) under weight (G, T).

    A prototype without any weight stays where it is.
    """
    total = weight.sum(dim=1, keepdim=True)
    return move_to_sum(prototypes, x, weight / torch.where(total > 0, total, 1.0), index, gamma)


def move_to_sum(prototypes: Tensor, x: Tensor, weight: Tensor, index: Tensor, gamma: float) -> Tensor:
    """Return γP + (1 − γ)Σ wx (G, d), over tokens x (N, d) at index (G, T) with weight w (G, T).

    A prototype without any weight stays where it is.
    """
    total = weight.sum(dim=1, keepdim=True)
    pulled = (weight[:, None, :] @ x[index]).squeeze(1)
    return torch.where(total > 0, gamma * prototypes + (1.0 - gamma) * pulled, prototypes)


def move_to_last(prototypes: Tensor, x: Tensor, index: Tensor, valid: Tensor | None, gamma: float) -> Tensor:
    """Return γP + (1 − γ)x (G, d), x the last of the tokens (N, d) whose prototype's index (N,) it is.

    A prototype without any token, or with tokens of padding alone, stays where it is.
    """
    place = torch.arange(len(x), device=x.device)
    if valid is not None:
        place = torch.where(valid, place, -1)
    nobody = torch.full_like(prototypes[:, 0], -1, dtype=torch.int64)
    last = nobody.scatter_reduce(0, index, place, "amax")
    moved = gamma * prototypes + (1.0 - gamma) * x[last.clamp(min=0)]
    return torch.where((last >= 0)[:, None], moved, prototypes)


def top_entries(scores: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Return the `largest` greatest entries of each column of scores (N, G), and their rows, both (G, largest).

    In falling order, ties by the lowest row, on every device and stacked or not; `topk` leaves that open.
    """
    if is_exporting():  # ONNX's TopK keeps this order
        entries, index = scores.transpose(0, 1).topk(largest, dim=1)
        return entries, index
    if scores.dtype != torch.float32 or not reads_bytes():
        entries, index = scores.transpose(0, 1).sort(dim=1, descending=True, stable=True)
        return entries[:, :largest], index[:, :largest]
    if largest == 1:
        entries, index = scores.max(dim=0)
        return entries[:, None], index[:, None]
    width = max(1, KEYS[scores.device.type == "cpu"] // scores.shape[0])
    parts = [_top_entries(part, largest) for part in torch.split(scores, width, dim=1)]
    entries, index = (torch.cat(part) for part in zip(*parts, strict=True))
    return entries, index


def _top_entries(scores: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Return what `top_entries` does, of float32 and by sorting keys: twenty times as fast as the stable sort."""
    # A float's bits, those of negative ones flipped, sort like the float; the row number in the lower half breaks ties.
    columns = scores.contiguous().transpose(0, 1)  # torch transposes fast what is contiguous, and only that
    bits = columns.clone(memory_format=torch.contiguous_format).view(torch.int32)
    bits ^= (bits >> 31).bitwise_and_(0x7FFFFFFF)
    last_first = torch.arange(scores.shape[0] - 1, -1, -1, device=scores.device)
    keys = bits.to(torch.int64).bitwise_left_shift_(32).bitwise_or_(last_first)
    index = keys.topk(largest, dim=1).indices
    return columns.gather(1, index), index
