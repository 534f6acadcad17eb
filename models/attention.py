"""Multi-head self-attention, as the transformers here use it.

Vaswani et al., 'Attention Is All You Need', NeurIPS 2017, arXiv 1706.03762.
"""

import torch
from torch import Tensor, nn


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
        split = (batch, tokens, self.heads, self.head_width)
        query = self.query(x).view(split).transpose(1, 2) * self.head_width**-0.5
        key = self.key(x).view(split).permute(0, 2, 3, 1)
        value = self.value(x).view(split).transpose(1, 2)
        # Two matmuls: scaled_dot_product_attention falls back to a loop under vmap on the CPU.
        mixed = torch.softmax(query @ key, dim=-1) @ value
        attended: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, self.heads * self.head_width))
        return attended
