"""Dropout and stochastic depth whose masks are a pure function of a buffer and the element's index.

Srivastava et al., 'Dropout', JMLR 15, 2014.
Huang et al., 'Deep Networks with Stochastic Depth', ECCV 2016, arXiv 1603.09382.
Tompson et al., 'Efficient Object Localization Using Convolutional Networks', CVPR 2015, arXiv 1411.4280: channels.
The integer hash is Wellons' `lowbias32` ('Prospecting for Hash Functions', 2018).

A global random generator gives other masks stacked (vmap) than one by one, and other masks to a short batch
than to the same batch with padding. Here a mask depends on `noise_state` and on the flat index only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.errors import OptionError
from models.layers.exporting import reads_bytes

# lowbias32's two multipliers, the second as a signed 32-bit number: torch has no full set of uint32 kernels.
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B - (1 << 32)
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # 2⁶⁴ over the golden ratio: Knuth's multiplicative hashing
_BITS = 16


def lowbias32(x: Tensor) -> Tensor:
    """Mix int32 values (any shape); products wrap, and masks turn the arithmetic shifts into logical ones."""
    mixed = x.clone()  # in place from here on: no new memory for each of nine results
    mixed ^= (x >> 16).bitwise_and_(0xFFFF)
    mixed *= _FIRST
    mixed ^= (mixed >> 15).bitwise_and_(0x1FFFF)
    mixed *= _SECOND
    mixed ^= (mixed >> 16).bitwise_and_(0xFFFF)
    return mixed


def uniform_words(noise_state: Tensor, count: int) -> Tensor:
    """Return (count,) int32, each uniform over all 2³² values, from a scalar int64 state."""
    spread = noise_state * _GOLDEN  # neighbouring states, as those of a layer are, get distant seeds
    seed = (spread ^ (spread >> 32)).to(torch.int32)
    index = torch.arange(count, dtype=torch.int32, device=noise_state.device)
    return lowbias32(index ^ seed)


def keep_mask(noise_state: Tensor, count: int, drop: float) -> Tensor:
    """Return (count,) bool, each True with probability 1 − drop up to 2⁻¹⁷, from a scalar int64 state.

    Half a word decides on an element: the hash is what a mask costs.
    """
    words = uniform_words(noise_state, -(-count // 2))
    threshold = min(round(drop * (1 << _BITS)), (1 << _BITS) - 1) - (1 << (_BITS - 1))
    if not reads_bytes():  # the low half, moved to the top, and the high one
        high = threshold * (1 << _BITS)
        return torch.stack([words * (1 << _BITS) >= high, words >= high], -1).reshape(-1)[:count]
    return words.view(torch.int16)[:count] >= threshold


class Dropout(nn.Module):
    """Zero each element with probability p in training and scale the rest by 1/(1 − p).

    `noise_state` (scalar int64) advances by one in each training pass, rebound and never in place;
    it starts from torch's generator, so that layers differ. The identity in evaluation and for p = 0.
    """

    noise_state: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise OptionError(f"dropout probability {p}: expected 0 <= p < 1")
        self.p = p
        # as torch.randint draws, which on the meta device would import sympy: half a second in every process
        self.register_buffer("noise_state", torch.empty((), dtype=torch.int64).random_(1 << 31))

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, …) to the same shape."""
        if not self.training or self.p == 0.0:
            return x
        shape = self._mask_shape(x)
        keep = keep_mask(self.noise_state, shape.numel(), self.p).view(shape)
        self.noise_state = self.noise_state + 1
        whole = keep.view(torch.uint8) if reads_bytes() else keep  # torch widens bytes faster than booleans
        return x * whole.to(x.dtype).mul_(1.0 / (1.0 - self.p))

    def _mask_shape(self, x: Tensor) -> torch.Size:
        return x.shape

    def extra_repr(self) -> str:
        return f"p={self.p}"


class DropPath(Dropout):
    """Stochastic depth: drop a residual branch for whole examples, with one draw per row of the batch."""

    def _mask_shape(self, x: Tensor) -> torch.Size:
        return torch.Size([x.shape[0], *([1] * (x.dim() - 1))])


class ChannelDropout(Dropout):
    """Drop whole channels of feature maps (B, C, H, W), with one draw per example and channel."""

    def _mask_shape(self, x: Tensor) -> torch.Size:
        return torch.Size([*x.shape[:2], *([1] * (x.dim() - 2))])
