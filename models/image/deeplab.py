"""DeepLab-V3+ on MobileNet-V2, whose parameters have torchvision's names.

Chen et al., 'Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation', ECCV 2018, arXiv
1802.02611; the pyramid: Chen et al., 'Rethinking Atrous Convolution', 2017, arXiv 1706.05587; the encoder: Sandler et
al., CVPR 2018, arXiv 1801.04381. 5 816 053 parameters at 21 classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gaitway.input_spec import HEAD
from models.errors import OptionError
from models.image.mobilenet import QUARTER, check_width, convolution, inverted_residuals, norm_named, started
from models.image.segmentation import Segmenter, resized
from models.layers.normalization import GROUP, Norm, grouped_norm
from models.model import FeaturePlace, Published, image_shape

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
    `norm`: of the encoder; "group", or "frozen" for weights from a file (`models.pretrained`). What is above it has no
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
