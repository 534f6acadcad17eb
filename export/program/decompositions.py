"""Decomposes operators of a training step into ONNX operators that ONNX Runtime computes fast.

torch's own core decompositions come first. Ours are convolutions and GroupNorm with their gradients, as matrix products
and sums with the channels last (the weights' gradient as a convolution with exchanged roles takes three quarters of a
step), and what adds rows by their class, as a product with a one-hot matrix: the same on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import core_aten_decompositions

ATEN = torch.ops.aten


def _windows(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Return the windows (B, L, kernel · C) of x (B, C, T), a window's steps before its channels.

    A kernel of j strides is j blocks of one stride side by side, so no step is copied more than j times.
    """
    padded = F.pad(x.permute(0, 2, 1), (0, 0, padding, padding))
    batch, steps, channels = padded.shape
    length, parts = (steps - kernel) // stride + 1, kernel // stride
    blocks = padded[:, : (length + parts - 1) * stride].reshape(batch, length + parts - 1, stride * channels)
    return torch.cat([blocks[:, i : i + length] for i in range(parts)], 2) if parts > 1 else blocks


def _as_matrix(weight: Tensor) -> Tensor:
    """Lay a kernel (out, C, k) out as (out, k · C), as `_windows` has its columns.

    One dimension moves: ONNX Runtime copies blocks then, and takes the product's transpose as an option of it.
    """
    return weight.permute(0, 2, 1).reshape(weight.shape[0], -1)


def _is_plain(weight: Tensor, stride: list[int], dilation: list[int], transposed: bool, groups: int) -> bool:
    whole = weight.dim() == 3 and weight.shape[2] % stride[0] == 0
    return whole and not transposed and groups == 1 and dilation[0] == 1


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Any:
    """Convolve signals (B, C, T) by one matrix product of their windows."""
    if not _is_plain(weight, stride, dilation, transposed, groups):
        return NotImplemented
    windows = _windows(x, weight.shape[2], stride[0], padding[0])
    product = windows.reshape(-1, windows.shape[2]) @ _as_matrix(weight).t()
    shifted = product if bias is None else product + bias
    return shifted.reshape(*windows.shape[:2], -1).permute(0, 2, 1)


def convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    wanted: list[bool],
) -> Any:
    """Return the gradients of x, weight and bias; the windows are the forward pass's, which ORT merges."""
    if not _is_plain(weight, stride, dilation, transposed, groups):
        return NotImplemented
    (step,), (pad,), kernel, channels, length = stride, padding, weight.shape[2], x.shape[1], x.shape[2]
    windows = _windows(x, kernel, step, pad)
    batch, places, columns = windows.shape
    rows = gradient.permute(0, 2, 1).reshape(-1, gradient.shape[1])
    of_x = of_weight = None
    if wanted[1]:
        product = rows.t() @ windows.reshape(-1, columns)
        of_weight = product.reshape(-1, kernel, channels).permute(0, 2, 1)
    if wanted[0]:
        parts = torch.split((rows @ _as_matrix(weight)).reshape(batch, places, columns), step * channels, 2)
        added = [F.pad(part, (0, 0, i, len(parts) - 1 - i)) for i, part in enumerate(parts)]
        padded = sum(added[1:], start=added[0]).reshape(batch, -1, channels)
        padded = F.pad(padded, (0, 0, 0, max(0, length + 2 * pad - padded.shape[1])))
        of_x = padded[:, pad : pad + length].permute(0, 2, 1)
    return of_x, of_weight, rows.sum(0) if wanted[2] else None


def _channels_last(signal: Tensor, batch: int, channels: int, size: int) -> Tensor:
    return signal.reshape(batch, channels, size).permute(0, 2, 1)


def _of_channels(of_groups: Tensor, channels: int) -> Tensor:
    """Give each channel its group's number: (B, groups) → (B, 1, C), whose rows add to rows of a signal (B, T, C)."""
    batch, groups = of_groups.shape
    return of_groups[:, :, None].expand(batch, groups, channels // groups).reshape(batch, 1, channels)


def _of_groups(of_channels: Tensor, groups: int) -> Tensor:
    """Add the numbers (B, C) of each group's channels: (B, groups)."""
    return of_channels.reshape(of_channels.shape[0], groups, -1).sum(2)


def group_norm(
    x: Tensor, weight: Tensor, bias: Tensor, batch: int, channels: int, size: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize x (B, C, size) by groups of channels; return it, means (B, groups) and 1/deviations.

    Sums over time come first, and whole rows of channels are shifted and scaled: on (B, T, groups, C / groups) ONNX
    Runtime would do so by runs of a dozen numbers.
    """
    signal, count = _channels_last(x, batch, channels, size), size * channels // groups
    mean = _of_groups(signal.sum(1), groups) / count
    centred = signal - _of_channels(mean, channels)
    scale = (_of_groups((centred * centred).sum(1), groups) / count + eps) ** -0.5
    out = (centred * (_of_channels(scale, channels) * weight) + bias).permute(0, 2, 1)
    return out.reshape(x.shape), mean, scale


def group_norm_backward(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    batch: int,
    channels: int,
    size: int,
    groups: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias, by the sums over time that all three need."""
    of_out, signal = (_channels_last(tensor, batch, channels, size) for tensor in (gradient, x))
    count, spread = size * channels // groups, _of_channels(scale, channels)
    centred = signal - _of_channels(mean, channels)
    of_bias, along = of_out.sum(1), (of_out * centred).sum(1) * spread[:, 0]
    shift, slope = (_of_channels(_of_groups(term * weight, groups) / count, channels) for term in (of_bias, along))
    of_x = of_out * (spread * weight) - (centred * (spread * spread * slope) + spread * shift)
    return of_x.permute(0, 2, 1).reshape(x.shape), along.sum(0), of_bias.sum(0)


def _one_hot(index: Tensor, rows: int, like: Tensor) -> Tensor:
    return (index[:, None] == torch.arange(rows, device=index.device)).to(like.dtype)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Any:
    """Add rows of `source` to those of x that `index` names."""
    if dim != 0 or alpha != 1:
        return NotImplemented
    flat = source.reshape(source.shape[0], -1)
    return x + (_one_hot(index, x.shape[0], source).t() @ flat).reshape(x.shape)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """Add numbers (n,) to those of x that `index` names."""
    if x.dim() != 1:
        return NotImplemented
    return x + (_one_hot(index, x.shape[0], source) * source[:, None]).sum(0)


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return the main diagonal of one square matrix."""
    if x.dim() != 2 or offset or x.shape[0] != x.shape[1]:
        return NotImplemented
    return x.reshape(-1)[:: x.shape[0] + 1]


def lerp(start: Tensor, end: Tensor, weight: float) -> Tensor:
    """Go from start to end; torch switches to another formula from a weight of 0.5 on, so this does."""
    return start + weight * (end - start) if abs(weight) < 0.5 else end - (end - start) * (1 - weight)


def vector_norm(x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the Euclidean norm, the only one that layers here take."""
    if order != 2 or dtype not in (None, x.dtype):
        return NotImplemented
    return (x * x).sum(dim, keepdim).sqrt()


def eye(rows: int, *, dtype: Any = None, **_: Any) -> Tensor:
    """Return the identity matrix; torch compares bytes, of which ONNX makes no range."""
    places = torch.arange(rows)
    return (places[:, None] == places).to(dtype or torch.float32)


def empty_permuted(size: list[int], order: list[int], *, dtype: Any = None, **_: Any) -> Tensor:
    """Return zeros: a graph has no memory that is left as it was."""
    return torch.zeros(size, dtype=dtype)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    **core_aten_decompositions(),
    ATEN.convolution.default: convolution,
    ATEN.convolution_backward.default: convolution_backward,
    ATEN.native_group_norm.default: group_norm,
    ATEN.native_group_norm_backward.default: group_norm_backward,
    ATEN.index_add.default: index_add,
    ATEN.scatter_add.default: scatter_add,
    ATEN.diagonal.default: diagonal,
    ATEN.lerp.Scalar: lerp,
    ATEN.linalg_vector_norm.default: vector_norm,
    ATEN.eye.default: eye,
    ATEN.empty_permuted.default: empty_permuted,
}
