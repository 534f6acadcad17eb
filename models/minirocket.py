"""MiniRocket: shares of a window's positions at which a fixed convolution exceeds a fixed bias, without rounding.

A. Dempster, D. F. Schmidt, G. I. Webb: MiniRocket: A Very Fast (Almost) Deterministic Transform for Time Series
Classification, KDD 2021, arXiv 2012.08791: the 84 kernels of length 9 with six weights of −1 and three of 2 (section
3.1), biases that are quantiles of the convolution's output, by a low-discrepancy sequence, and the share of positive
values (PPV) as the only feature.

Differs from the paper: dilations are 1, 2, 4, 8 and 15; every window is padded with zeros; and biases are of generated
windows (`benchmarks/har_feature_scale.py`), not of the examples, so that all clients have the same and no data set is
in them. Six of the twelve channels don't depend on how the phone is turned: the lengths of acceleration and rotation,
and their parts along and across the window's mean acceleration.

A comparison turns a rounding error into another feature. So channels are whole steps of 2⁻¹⁰ m/s² or rad/s, biases are
half steps, and no operation rounds otherwise in another runtime: sums stay below 2²⁴ in float32 and 2⁵³ in float64, and
IEEE 754 defines square root and division. Torch, numpy and ONNX Runtime agree bit for bit, on a board and in a browser.
Only products of matrices in lower precision (TF32, bfloat16, int8) would differ; `export.graph` keeps int8 away.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Final

import torch
from torch import Tensor, nn

from models.har_feature_scale import BIASES

WINDOW, LENGTH, CHANNELS = 128, 9, 12
DILATIONS: Final = (1, 2, 4, 8, 15)
KERNELS: Final = tuple(combinations(range(LENGTH), 3))
"""Of each kernel the three places of weight 2; the other six have −1."""
STEPS = 1024.0
"""Steps to 1 m/s² or 1 rad/s."""
RANGE = 128.0
"""Measured values are cut off beyond it, so that no square of steps needs more than 53 bits."""
FINER = 256.0
"""The part along gravity has so many steps to one: the part across it is a difference of squares."""
MAX_FEATURES = len(BIASES)
OF_ACCELERATION: Final = (0, 1, 2, 6, 7, 8)
"""Channels that a device without a gyroscope has."""
_HALF, _REACH = CHANNELS // 2, LENGTH // 2
_GROUPS, _PADDING = _HALF * len(DILATIONS), _REACH * max(DILATIONS)


class MiniRocket(nn.Module):
    """Map raw windows x (B, 128, 6) to features (B, `features`) from −4 to 4; half of them ignore orientation."""

    def __init__(self, features: int) -> None:
        super().__init__()
        half = features // 2
        numbers = [*range(half), *range(MAX_FEATURES // 2, MAX_FEATURES // 2 + half)]
        positions = [position(number) for number in numbers]
        ranks = max(rank for *_, rank in positions) + 1
        kernels = torch.full((len(DILATIONS), CHANNELS, ranks, LENGTH), -1.0)
        thresholds = torch.full((len(DILATIONS), CHANNELS, ranks, 1), 0.5)
        for number, (channel, dilation, rank) in zip(numbers, positions, strict=True):
            kernels[dilation, channel, rank, list(kernel(number))] = 2.0
            thresholds[dilation, channel, rank] += BIASES[number]
        self.dilated = nn.ModuleList(map(Dilated, DILATIONS, kernels, thresholds))
        self.channels = tuple(channel for channel, *_ in positions)
        """The channel of each feature."""
        self.places = [(dilation * CHANNELS + channel) * ranks + rank for channel, dilation, rank in positions]

    def forward(self, x: Tensor) -> Tensor:
        """Return 8 (PPV − ½): whole multiples of 1/16."""
        padded = nn.functional.pad(channels_of(x), (_PADDING, _PADDING))
        counts = torch.cat([layer(padded) for layer in self.dilated], dim=1)
        found = torch.index_select(counts, 1, torch.tensor(self.places, device=x.device))
        return found / (WINDOW / 8) - 4


class Dilated(nn.Module):
    """Count the positions at which each kernel of one dilation exceeds its bias, channel after channel."""

    kernels: Tensor
    thresholds: Tensor

    def __init__(self, dilation: int, kernels: Tensor, thresholds: Tensor) -> None:
        super().__init__()
        self.starts = [_PADDING + dilation * tap for tap in range(-_REACH, _REACH + 1)]
        self.register_buffer("kernels", kernels.clone())
        self.register_buffer("thresholds", thresholds.clone())

    def forward(self, padded: Tensor) -> Tensor:
        """Map padded channels (B, 12, 128 + 2 · padding) to whole numbers (B, 12 · ranks)."""
        shifted = torch.stack([padded[..., start : start + WINDOW] for start in self.starts], dim=2)  # (B, 12, 9, T)
        exceeds = torch.matmul(self.kernels, shifted) > self.thresholds  # (B, 12, ranks, T)
        return exceeds.to(padded.dtype).sum(3).flatten(1)


def channels_of(x: Tensor) -> Tensor:
    """Return the channels (B, 12, T) of raw windows x (B, T, 6), in whole steps; the first six ignore orientation."""
    steps = torch.round(x.clamp(-RANGE, RANGE) * STEPS).double()
    gravity = steps[..., :3].sum(1, keepdim=True)
    length = torch.sqrt((gravity * gravity).sum(2)).clamp(min=1.0)  # a still sensor in free fall has no direction
    free = []
    for signal in (steps[..., :3], steps[..., 3:]):
        square = (signal * signal).sum(2)
        along = torch.round((signal * gravity).sum(2) / length * FINER)
        across = torch.sqrt((square * FINER**2 - along * along).clamp(min=0.0)) / FINER
        free += [torch.sqrt(square), along / FINER, across]
    return torch.cat([torch.stack(free, dim=1), steps.transpose(1, 2)], dim=1).round().float()


def position(number: int) -> tuple[int, int, int]:
    """Return channel, number of the dilation, and rank among the kernels of both, of a feature of the `MAX_FEATURES`.

    The first half of the features are of the first six channels. Fewer features are the first ones of each half.
    """
    half, place = divmod(number, MAX_FEATURES // 2)
    return half * _HALF + place % _HALF, place // _HALF % len(DILATIONS), place // _GROUPS


def kernel(number: int) -> tuple[int, int, int]:
    """Return where a feature's kernel has weight 2: another kernel for each rank, by steps near the golden section."""
    channel, dilation, rank = position(number)
    return KERNELS[(53 * rank + 14 * (channel % _HALF) + 5 * dilation + 42 * (channel // _HALF)) % len(KERNELS)]


def quantile(number: int) -> float:
    """Return which quantile of the convolution's output a feature's bias is: the paper's low-discrepancy sequence."""
    return (number + 1) * (math.sqrt(5) + 1) / 2 % 1
