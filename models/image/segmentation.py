"""Segmentation networks: a small one for devices with two cores, and DeepLab-V3+ on MobileNet-V2.

segmenter_small is our small network from known parts: an encoder of residual blocks (He et al., CVPR 2016, arXiv
1512.03385) and a decoder that joins its deepest maps with those of a quarter of the image's sides, as DeepLab-V3+ does
(Chen et al., ECCV 2018, arXiv 1802.02611). 332 011 parameters at 11 classes.

DeepLab-V3+ on MobileNet-V2 has torchvision's parameter names: Chen et al., 'Encoder-Decoder with Atrous Separable
Convolution for Semantic Image Segmentation', ECCV 2018, arXiv 1802.02611; the pyramid: Chen et al., 'Rethinking Atrous
Convolution', 2017, arXiv 1706.05587; the encoder: Sandler et al., CVPR 2018, arXiv 1801.04381. 5 816 053 parameters at
21 classes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitway.input_spec import HEAD
from gaitway.tasks import TargetKind
from models.errors import OptionError
from models.image.mobilenet import QUARTER, check_width, convolution, inverted_residuals, norm_named, started
from models.image.resnet import BasicBlock
from models.layers.channels_last import Conv2d
from models.layers.normalization import GROUP, Norm, grouped_norm
from models.model import FeaturePlace, Model, ModelOutput, Published, image_shape


class Segmenter(Model):
    """An encoder, a decoder that joins its maps, and a convolution as the head; logits have the image's resolution.

    Features are what enters the head, or with `features_at="encoder"` the encoder's last maps, which are smaller.
    """

    input_kinds = ("image",)
    feature_places = ("head", "encoder")
    targets: ClassVar[tuple[TargetKind, ...]] = (TargetKind.MASK,)

    @abstractmethod
    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (B, C, H, W) to the encoder's maps at 1/4 of the sides, rounded up, and to its last ones at 1/16."""

    @abstractmethod
    def decode(self, quarter: Tensor, deep: Tensor) -> Tensor:
        """Join both of them to what enters the head, at 1/4 of the sides."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, C, H, W) to features (B, D, h, w) and logits (B, classes, H, W); mask is not needed."""
        quarter, deep = self.encode(x)
        joined = self.decode(quarter, deep)
        return ModelOutput(deep if self.features_at == "encoder" else joined, resized(self.head(joined), x))


class SegmenterSmall(Segmenter):
    """Four halvings, a decoder at a quarter of the sides, `feature_dim` channels into the head; images of any sides.

    `channels`: after each halving; the last of them is D with `features_at="encoder"`, else D is `feature_dim`.
    """

    small: ClassVar[Mapping[str, Any]] = {"input_shape": [3, 18, 26], "channels": [8, 8, 16, 16], "feature_dim": 8}

    def __init__(
        self,
        classes: int,
        *,
        input_shape: Sequence[int] = (3, 180, 240),
        channels: Sequence[int] = (16, 32, 64, 128),
        feature_dim: int = 48,
        features_at: FeaturePlace = "head",
    ) -> None:
        super().__init__(
            classes, input_shape=list(input_shape), channels=list(channels), feature_dim=feature_dim,
            features_at=features_at,
        )  # fmt: skip
        self.input_shape = image_shape(input_shape)
        if len(channels) != 4 or any(width < 1 or width % GROUP for width in (*channels, feature_dim)):
            raise OptionError(
                f"channels={list(channels)}, feature_dim={feature_dim}: expected four widths and one, all of them "
                f"multiples of {GROUP}"
            )
        self.feature_dim = channels[-1] if features_at == "encoder" else feature_dim
        half, quarter, eighth, sixteenth = channels
        self.stem = _convolution(self.input_shape[0], half, 2)
        self.quarter = BasicBlock(half, quarter, 2, grouped_norm)
        self.deep = nn.Sequential(
            BasicBlock(quarter, eighth, 2, grouped_norm), BasicBlock(eighth, sixteenth, 2, grouped_norm)
        )
        self.from_deep = Conv2d(sixteenth, feature_dim, 1, bias=False)
        self.from_quarter = Conv2d(quarter, feature_dim, 1, bias=False)
        self.join = nn.Sequential(grouped_norm(feature_dim), nn.ReLU(), _convolution(feature_dim, feature_dim))
        self.head = Conv2d(feature_dim, classes, 1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (B, C, H, W) to the maps of the second halving and of the fourth."""
        quarter = self.quarter(self.stem(x))
        return quarter, self.deep(quarter)

    def decode(self, quarter: Tensor, deep: Tensor) -> Tensor:
        """Add both at the size of the larger ones."""
        joined: Tensor = self.join(resized(self.from_deep(deep), quarter) + self.from_quarter(quarter))
        return joined


def resized(maps: Tensor, like: Tensor) -> Tensor:
    """Interpolate maps (B, C, h, w) bilinearly to the sides of another (…, H, W)."""
    return functional.interpolate(maps, size=like.shape[-2:], mode="bilinear", align_corners=False)


def _convolution(channels: int, out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(Conv2d(channels, out, 3, stride, padding=1, bias=False), grouped_norm(out), nn.ReLU())


_OUTPUT_STRIDE = 16


class PooledBranch(nn.Module):
    """The mean over the image through a 1×1 convolution, the same at every pixel."""

    def __init__(self, channels: int, out: int, norm: Norm) -> None:
        super().__init__()
        self.project = convolution(channels, out, 1, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, h, w) to (B, out, h, w)."""
        pooled: Tensor = self.project(x.mean(dim=(2, 3), keepdim=True))
        return pooled.expand(-1, -1, *x.shape[2:])


class AtrousPyramid(nn.Module):
    """ASPP: a 1×1 convolution, one of 3×3 for each dilation, and the image's mean, side by side, projected by 1×1."""

    def __init__(self, channels: int, out: int, dilations: Sequence[int], norm: Norm) -> None:
        super().__init__()
        dilated = (convolution(channels, out, 3, norm, dilation=dilation) for dilation in dilations)
        self.branches = nn.ModuleList(
            [convolution(channels, out, 1, norm), *dilated, PooledBranch(channels, out, norm)]
        )
        self.project = convolution(len(self.branches) * out, out, 1, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, h, w) to (B, out, h, w)."""
        side_by_side = torch.cat([branch(x) for branch in self.branches], dim=1)
        projected: Tensor = self.project(side_by_side)
        return projected


class DeepLabV3Plus(Segmenter):
    """MobileNet-V2 to 1/16 of the sides, ASPP, and a decoder that joins it with the maps at 1/4; D = `channels`.

    With `features_at="encoder"` features are the pyramid's maps at 1/16: to Chen et al. it belongs to the encoder.
    `norm`: of the encoder; "group", or "frozen" for weights from a file (`models.checkpoint`). What is above it has no
    weights in such a file, so it has GroupNorm always. `width` multiplies the encoder's channels.
    Differs from the paper: GroupNorm above the encoder; plain convolutions in pyramid and decoder, as in DeepLab-V3;
    ReLU6 throughout, as in the encoder.
    """

    published = Published("classifier.", unused=("features.18.",), fresh=("pyramid.", "quarter.", "decoder.", HEAD))
    small: ClassVar[Mapping[str, Any]] = {
        "input_shape": [3, 34, 41],
        "width": 0.25,
        "channels": 8,
        "quarter_channels": 8,
        "dilations": [2, 3],
    }

    def __init__(
        self,
        classes: int,
        *,
        input_shape: Sequence[int] = (3, 257, 257),
        norm: str = "group",
        width: float = 1.0,
        channels: int = 256,
        quarter_channels: int = 48,
        dilations: Sequence[int] = (6, 12, 18),
        features_at: FeaturePlace = "head",
    ) -> None:
        super().__init__(
            classes, input_shape=list(input_shape), norm=norm, width=width, channels=channels,
            quarter_channels=quarter_channels, dilations=list(dilations), features_at=features_at,
        )  # fmt: skip
        self.input_shape = image_shape(input_shape)
        check_width(width)
        _check(channels, quarter_channels, dilations)
        self.feature_dim = channels
        layers, widths = inverted_residuals(self.input_shape[0], width, norm_named(norm), _OUTPUT_STRIDE)
        self.features = nn.Sequential(*layers)
        self.pyramid = AtrousPyramid(widths[-1], channels, dilations, grouped_norm)
        self.quarter = convolution(widths[QUARTER - 1], quarter_channels, 1, grouped_norm)
        self.decoder = nn.Sequential(
            convolution(channels + quarter_channels, channels, 3, grouped_norm),
            convolution(channels, channels, 3, grouped_norm),
        )
        self.head = nn.Conv2d(channels, classes, 1)
        started(self.features)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (B, C, H, W) to MobileNet's maps at 1/4, and the pyramid's at 1/16."""
        quarter = self.features[:QUARTER](x)
        return quarter, self.pyramid(self.features[QUARTER:](quarter))

    def decode(self, quarter: Tensor, deep: Tensor) -> Tensor:
        """Convolve both side by side, at the size of the larger ones."""
        joined: Tensor = self.decoder(torch.cat([resized(deep, quarter), self.quarter(quarter)], dim=1))
        return joined


def _check(channels: int, quarter_channels: int, dilations: Sequence[int]) -> None:
    if min(channels, quarter_channels) < 1 or channels % GROUP or quarter_channels % GROUP:
        raise OptionError(
            f"channels={channels}, quarter_channels={quarter_channels}: expected multiples of {GROUP}, the groups' size"
        )
    if not 1 <= len(dilations) <= 8 or min(dilations) < 1:
        raise OptionError(f"dilations={list(dilations)}: expected one to eight, each at least 1; [6, 12, 18] published")
