"""Normalization that does not depend on the batch: GroupNorm by groups of eight, and BatchNorm with fixed statistics.

GroupNorm: Wu and He, ECCV 2018, arXiv 1803.08494; in federated learning Hsieh et al., ICML 2020, arXiv 1910.00189.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.layers.channels_last import is_lifted

Norm = Callable[[int], nn.Module]
GROUP = 8


class FrozenBatchNorm(nn.Module):
    """An affine map per channel, the same in training and evaluation: (x − mean)/√(var + ε) · weight + bias.

    Ioffe and Szegedy, 'Batch Normalization', ICML 2015, arXiv 1502.03167, in the form that it has in evaluation.

    The tensors have BatchNorm's names. `weight` and `bias` train; the statistics are buffers, which no method
    sends, so whoever takes part must have loaded the same file (`models.checkpoint`). Fresh: the identity.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to the same shape."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class ImageGroupNorm(nn.GroupNorm):
    """torch's GroupNorm; under vmap torch's kernel takes no other memory format than its default one."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to the same shape."""
        return super().forward(x.contiguous() if is_lifted(x) else x)


def grouped_norm(channels: int) -> nn.Module:
    """Return GroupNorm by groups of eight channels, a divisor of `channels`: no group is a single number at 1×1."""
    return ImageGroupNorm(channels // GROUP, channels)
