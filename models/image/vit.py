"""ViT tiny, with or without ALP layers.

Dosovitskiy et al., 'An Image is Worth 16x16 Words', ICLR 2021, arXiv 2010.11929; the width and heads of DeiT-Ti
(Touvron et al., ICML 2021, arXiv 2012.12877). With ALP, 6 blocks: Ek et al., FedAli, 2024, section 5.
Parameters at 32×32 and 10 classes: 2 692 042; with ALP 3 136 714, and 2 × 774 144 numbers in the prototype buffers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.errors import OptionError
from models.layers.alp import AlpBlocks, BlockOptions, Transformer, entering
from models.layers.attention import Attention
from models.layers.dropout import Dropout, DropPath
from models.model import ModelOutput, image_shape

# As many as the largest ViT has; options may come from outside.
MAX_BLOCKS = 32


class Patches(nn.Module):
    """Conv2d(channels → width, kernel = stride = patch) as a reshape and a Linear: fast under vmap."""

    def __init__(self, channels: int, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.project = nn.Linear(channels * patch * patch, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, C, H, W) to tokens (B, Z, width), row by row."""
        batch, channels, height, width = x.shape
        rows, columns = height // self.patch, width // self.patch
        cut = x.reshape(batch, channels, rows, self.patch, columns, self.patch).permute(0, 2, 4, 1, 3, 5)
        tokens: Tensor = self.project(cut.reshape(batch, rows * columns, channels * self.patch**2))
        return tokens


class VitBlock(nn.Module):
    """Pre-norm block: ALP if there is one, attention, then MLP."""

    def __init__(self, width: int, heads: int, mlp: int, options: BlockOptions) -> None:
        super().__init__()
        self.alp, self.placement = options.alp, options.placement
        self.norm_mix = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads, width // heads)
        self.norm_mlp = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, mlp), nn.GELU(), Dropout(options.dropout), nn.Linear(mlp, width))
        self.drop_mix, self.drop_mlp = DropPath(options.drop_path), DropPath(options.drop_path)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map tokens (B, Z, width) to (B, Z, width)."""
        x, tokens = entering(x, self.norm_mix, self.alp, self.placement, mask)
        x = x + self.drop_mix(self.attention(tokens))
        out: Tensor = x + self.drop_mlp(self.mlp(self.norm_mlp(x)))
        return out


class Vit(Transformer):
    """A vision transformer on images (B, C, H, W); the head is one linear layer on the mean of the tokens.

    Differs from the papers: no class token; the mean of the tokens does as well (Beyer et al., 2022, arXiv
    2205.01580) and is what HART takes. FedAli names neither patch, MLP width nor dropout: 4, 4 × width, 0.1.
    """

    input_kinds = ("image",)
    small: ClassVar[Mapping[str, Any]] = {"input_shape": [3, 8, 12], "feature_dim": 12, "blocks": 2, "mlp": 16}

    def __init__(
        self,
        classes: int,
        *,
        input_shape: Sequence[int] = (3, 32, 32),
        patch: int = 4,
        feature_dim: int = 192,
        blocks: int = 6,
        heads: int = 3,
        mlp: int = 768,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(
            classes, input_shape=list(input_shape), patch=patch, feature_dim=feature_dim,
            blocks=blocks, heads=heads, mlp=mlp, dropout=dropout,
        )  # fmt: skip
        self.input_shape = channels, height, width = image_shape(input_shape)
        if patch < 1 or height % patch or width % patch:
            raise OptionError(f"patch={patch}: expected a divisor of {height} and {width}, the image's sides")
        if not 1 <= blocks <= MAX_BLOCKS or heads < 1 or feature_dim < heads or feature_dim % heads:
            raise OptionError(
                f"blocks={blocks}, heads={heads}: expected 1 to {MAX_BLOCKS} blocks, and heads to divide {feature_dim}"
            )
        self.feature_dim = feature_dim
        self.patches = Patches(channels, patch, feature_dim)
        self.position = nn.Parameter(torch.randn((height // patch) * (width // patch), feature_dim) * 0.02)
        self.blocks = nn.ModuleList(
            VitBlock(feature_dim, heads, mlp, options) for options in self.block_options(blocks, dropout)
        )
        self.norm = nn.LayerNorm(feature_dim, eps=1e-6)
        self.head = nn.Linear(feature_dim, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, C, H, W) to features (B, D) and logits (B, classes); mask (B,) is 0 for padding."""
        tokens = self.patches(x) + self.position
        for block in self.blocks:
            tokens = block(tokens, mask)
        features = self.norm(tokens).mean(dim=1)
        return ModelOutput(features, self.head(features))


class VitAlp(AlpBlocks, Vit):
    """ViT with an ALP layer before the attention of each block; `models.layers.alp` says where exactly."""

    without_alp = "vit_tiny"
    small: ClassVar[Mapping[str, Any]] = {
        "input_shape": [3, 8, 12],
        "feature_dim": 12,
        "blocks": 2,
        "mlp": 16,
        "prototypes": [40, 7],
    }
