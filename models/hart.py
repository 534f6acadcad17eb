"""HART, the Human Activity Recognition Transformer, with or without ALP layers.

Ek, Portet and Lalanda, 'Transformer-based Models to Deal with Heterogeneous Environments in Human Activity
Recognition', Personal and Ubiquitous Computing 27, 2023, arXiv 2209.11750. With ALP: Ek et al., FedAli, 2024.
Parameters at 6 classes: 1 444 190; with ALP 1 888 862, and 2 × 774 144 numbers in the prototype buffers.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gaitway.tasks import TargetKind
from models.errors import OptionError
from models.layers.alp import AlpBlocks, BlockOptions, Transformer, entering
from models.layers.attention import Attention
from models.layers.dropout import Dropout, DropPath
from models.model import ModelOutput

WINDOW, CHANNELS, PATCH = 128, 6, 16
TOKENS = WINDOW // PATCH
KERNELS = (3, 7, 15, 31, 31, 31)


class PatchEmbedding(nn.Module):
    """Conv1d(3 → width, kernel 16, stride 16) of one sensor as a reshape and a Linear: fast under vmap."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(PATCH * 3, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map one sensor (B, 128, 3) to tokens (B, 8, width)."""
        tokens: Tensor = self.project(x.reshape(x.shape[0], TOKENS, PATCH * 3))
        return tokens


class LightConv(nn.Module):
    """Depthwise convolution along time with one softmax-normalised kernel per head of channels.

    Wu et al., 'Pay Less Attention with Lightweight and Dynamic Convolutions', ICLR 2019, arXiv 1901.10430.
    Differs from HART's published code: that reshapes without a transpose, so its kernels slide over channels
    and never mix time steps, and writes the softmax back into the weights at each step, which flattens them.
    Written as a Toeplitz matrix per head over the few tokens: the same sum, and a plain matmul under vmap.
    """

    def __init__(self, kernel: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, kernel))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, Z, C) to (B, Z, C)."""
        batch, tokens, channels = x.shape
        heads = x.reshape(batch, tokens, self.weight.shape[0], -1).transpose(1, 2)
        return (self.toeplitz(tokens) @ heads).transpose(1, 2).reshape(batch, tokens, channels)

    def toeplitz(self, tokens: int) -> Tensor:
        """Return (heads, tokens, tokens): entry [h, o, i] is what input i weighs in output o."""
        padded = F.pad(torch.softmax(self.weight, dim=-1), (tokens - 1, tokens - 1))
        centre = self.weight.shape[1] // 2 + tokens - 1
        # Slices need no index tensor, which would be a buffer and so travel with the client's state.
        return torch.stack([padded[:, centre - o : centre - o + tokens] for o in range(tokens)], dim=1)


class Block(nn.Module):
    """Pre-norm block: attention, LightConv, attention on a quarter, a half, a quarter of the width; then MLP."""

    def __init__(self, width: int, heads: int, kernel: int, mlp: int, options: BlockOptions) -> None:
        super().__init__()
        self.alp, self.placement = options.alp, options.placement
        self.norm_mix = nn.LayerNorm(width, eps=1e-6)
        self.accelerometer = Attention(width // 4, heads)
        self.both = LightConv(kernel, heads=4)
        self.gyroscope = Attention(width // 4, heads)
        self.norm_mlp = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, mlp), nn.SiLU(), Dropout(options.dropout), nn.Linear(mlp, width))
        self.drop_mix, self.drop_mlp = DropPath(options.drop_path), DropPath(options.drop_path)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map tokens (B, 8, width) to (B, 8, width)."""
        x, tokens = entering(x, self.norm_mix, self.alp, self.placement, mask)
        quarter = x.shape[-1] // 4
        first, middle, last = torch.split(tokens, [quarter, 2 * quarter, quarter], dim=-1)
        mixed = torch.cat([self.accelerometer(first), self.both(middle), self.gyroscope(last)], dim=-1)
        x = x + self.drop_mix(mixed)
        out: Tensor = x + self.drop_mlp(self.mlp(self.norm_mlp(x)))
        return out


class Hart(Transformer):
    """HART on windows (B, 128, 6): accelerometer xyz, then gyroscope xyz, normalised.

    `blocks` (up to 6) takes the first kernels; `feature_dim` is the token width (a multiple of 16).
    """

    input_shape = (WINDOW, CHANNELS)
    input_kinds = ("window",)
    targets = (TargetKind.CLASS, TargetKind.NUMBER, TargetKind.WINDOW)  # the latter within `models.mae`
    small: ClassVar[Mapping[str, Any]] = {"blocks": 2, "feature_dim": 32, "mlp": 24, "head_width": 20}

    def __init__(
        self,
        classes: int,
        *,
        feature_dim: int = 192,
        blocks: int = 6,
        heads: int = 3,
        mlp: int = 384,
        head_width: int = 1024,
        dropout: float = 0.3,
    ) -> None:
        super().__init__(
            classes,
            feature_dim=feature_dim,
            blocks=blocks,
            heads=heads,
            mlp=mlp,
            head_width=head_width,
            dropout=dropout,
        )
        _check_sizes(feature_dim, blocks)
        self.feature_dim = feature_dim
        self.accelerometer = PatchEmbedding(feature_dim // 2)
        self.gyroscope = PatchEmbedding(feature_dim // 2)
        self.position = nn.Parameter(torch.randn(TOKENS, feature_dim) * 0.02)
        self.blocks = nn.ModuleList(
            Block(feature_dim, heads, kernel, mlp, options)
            for kernel, options in zip(KERNELS, self.block_options(blocks, dropout), strict=False)
        )
        self.norm = nn.LayerNorm(feature_dim, eps=1e-6)
        self.head = nn.Sequential(
            nn.Linear(feature_dim, head_width), nn.SiLU(), Dropout(dropout), nn.Linear(head_width, classes)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, 128, 6) to features (B, D) and logits (B, classes); mask (B,) is 0 for padding."""
        features = self.encode(self.embed(x), mask).mean(dim=1)
        return ModelOutput(features, self.head(features))

    def embed(self, x: Tensor) -> Tensor:
        """Map windows (B, 128, 6) to tokens with their positions (B, 8, D)."""
        return torch.cat([self.accelerometer(x[..., :3]), self.gyroscope(x[..., 3:])], dim=-1) + self.position

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map tokens (B, Z, D), all 8 or those that a mask left visible, through the blocks to (B, Z, D)."""
        for block in self.blocks:
            tokens = block(tokens, mask)
        encoded: Tensor = self.norm(tokens)
        return encoded


class HartAlp(AlpBlocks, Hart):
    """HART with an ALP layer before the attention of each block; `models.layers.alp` says where exactly."""

    without_alp = "hart"
    small: ClassVar[Mapping[str, Any]] = {
        "blocks": 2,
        "feature_dim": 32,
        "mlp": 24,
        "head_width": 20,
        "prototypes": [50, 9],
    }


def _check_sizes(feature_dim: int, blocks: int) -> None:
    if feature_dim < 16 or feature_dim % 16:
        raise OptionError(f"feature_dim={feature_dim}: expected a multiple of 16, for 4 + 4 heads of equal width")
    if not 1 <= blocks <= len(KERNELS):
        raise OptionError(f"blocks={blocks}: expected 1 to {len(KERNELS)}")
