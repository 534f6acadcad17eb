"""BatchNorm whose statistics do not move.

Ioffe and Szegedy, 'Batch Normalization', ICML 2015, arXiv 1502.03167, in the form that it has in evaluation.
"""

import torch
from torch import Tensor, nn


class FrozenBatchNorm(nn.Module):
    """An affine map per channel, the same in training and evaluation: (x − mean)/√(var + ε) · weight + bias.

    The tensors have BatchNorm's names. `weight` and `bias` train; the statistics are buffers, which no method
    sends, so whoever takes part must have loaded the same file (`models.pretrained`). Fresh: the identity.
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
