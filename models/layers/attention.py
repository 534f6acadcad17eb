"""Multi-head self-attention, as the transformers here use it.

Vaswani et al., 'Attention Is All You Need', NeurIPS 2017, arXiv 1706.03762.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Self-attention; a head is as wide as the input (HART) unless `head_width` says otherwise.

    Differs from the papers: no key bias; the softmax cancels it, and Adam amplifies its gradient's rounding.
    """

    def __init__(self, width: int, heads: int, head_width: int | None = None) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width or width
        inner = heads * self.head_width
        self.query = nn.Linear(width, inner)
        self.key = nn.Linear(width, inner, bias=False)
        self.value = nn.Linear(width, inner)
        self.out = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, Z, width) to (B, Z, width)."""
        batch, tokens, _ = x.shape
        query, key, value = self._projected(x)
        # Keys stand before queries, since a softmax over the last few numbers of a row is slow on a CPU. Two matmuls:
        # scaled_dot_product_attention falls back to a loop under vmap there.
        weights = torch.softmax(key @ query.transpose(1, 2) * self.head_width**-0.5, dim=1)
        mixed = weights.transpose(1, 2) @ value
        heads = mixed.view(batch, self.heads, tokens, self.head_width).transpose(1, 2)
        attended: Tensor = self.out(heads.reshape(batch, tokens, self.heads * self.head_width))
        return attended

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return query, key and value, each (B · heads, Z, head_width): one product, and one copy into this order."""
        weight = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        bias = torch.cat([self.query.bias, torch.zeros_like(self.query.bias), self.value.bias])
        split = functional.linear(x, weight, bias).view(*x.shape[:2], 3, self.heads, self.head_width)
        return split.permute(2, 0, 3, 1, 4).reshape(3, -1, x.shape[1], self.head_width).unbind()
