"""Layers in other layouts: channels last, frozen statistics, and what an exporter needs.

Whether layers are being written as an ONNX graph, whose operators lack some of torch's.
Within `exporting()` a layer computes by what ONNX has, to the same bits where it draws masks or breaks ties. It is one
process's matter for the moment of one export, so a context variable holds it.

Convolution, normalization and pooling with the channels innermost in memory, which is how a CPU does them fast.
Pooling 64 maps of 28 × 28 takes 0.85 ms instead of 5.6, the HAR CNN's three convolutions 16.1 instead of 20.6 (CPU, one
thread). torch's memory formats do the same, but not under vmap and not for signals. A permutation works everywhere and
costs nothing if the memory already has that order. Shapes stay (B, C, …), and parameters keep their names and layout.
A compiler or exporter chooses layouts itself and gets torch's own layers.

Normalization that does not depend on the batch: GroupNorm by groups of eight, and BatchNorm with fixed statistics.
GroupNorm: Wu and He, ECCV 2018, arXiv 1803.08494; in federated learning Hsieh et al., ICML 2020, arXiv 1910.00189.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn import functional

_EXPORTING: ContextVar[bool] = ContextVar("exporting", default=False)


@contextmanager
def exporting() -> Iterator[None]:
    """Let layers compute by what ONNX has."""
    token = _EXPORTING.set(True)
    try:
        yield
    finally:
        _EXPORTING.reset(token)


def is_exporting() -> bool:
    """Whether a graph for ONNX is being made of this computation."""
    return _EXPORTING.get()


def _lifts_views() -> bool:
    try:
        torch.func.vmap(lambda words: words.view(torch.int16))(torch.zeros(1, 1, dtype=torch.int32))
    except RuntimeError:
        return False
    return True


_LIFTS_VIEWS = _lifts_views()


def reads_bytes() -> bool:
    """Whether a tensor's bytes may be read as another type: ONNX cannot, and torch's vmap not before 2.13."""
    return _LIFTS_VIEWS and not is_exporting()


def leaves_layout_alone() -> bool:
    """Whether somebody else decides how tensors lie in memory: a compiler, or whoever runs an exported graph."""
    return is_exporting() or torch.compiler.is_compiling()


def channels_last(x: Tensor) -> Tensor:
    """Return x (B, C, …) with the channels innermost in memory; a copy only where they are not."""
    return x if leaves_layout_alone() else x.movedim(1, -1).contiguous().movedim(-1, 1)


def is_lifted(x: Tensor) -> bool:
    """Whether `x` stands for many clients' tensors: vmap makes grouped convolutions, which lie otherwise anyway."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(x))  # torch says it nowhere in public


class Conv2d(nn.Conv2d):
    """torch's convolution of images."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to (B, out, H′, W′)."""
        return super().forward(channels_last(x))


class MaxPool2d(nn.MaxPool2d):
    """torch's max pooling."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to (B, C, H′, W′)."""
        pooled: Tensor = super().forward(channels_last(x))
        return pooled


class Conv1d(nn.Conv1d):
    """torch's convolution of signals with zero padding, as one of images of height 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, T) to (B, out, T′)."""
        if leaves_layout_alone() or is_lifted(x):
            return super().forward(x)
        (stride,), (dilation,) = self.stride, self.dilation
        image, weight = channels_last(x).unsqueeze(2), self.weight.unsqueeze(2)
        padding = (0, int(self.padding[0]))
        return functional.conv2d(image, weight, self.bias, (1, stride), padding, (1, dilation), self.groups).squeeze(2)


class GroupNorm(nn.GroupNorm):
    """torch's GroupNorm of signals."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, T) to (B, C, T)."""
        if leaves_layout_alone() or is_lifted(x):
            return super().forward(x)
        return super().forward(channels_last(x).unsqueeze(2)).squeeze(2)


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
