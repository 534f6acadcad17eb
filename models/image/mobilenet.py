"""MobileNet-V2 with torchvision's names of parameters, but for `head`, which is their `classifier`.

Sandler et al., 'MobileNetV2: Inverted Residuals and Linear Bottlenecks', CVPR 2018, arXiv 1801.04381, table 2.
Parameters at 10 classes: 2 236 682; 3 504 872 at 1000, as published, with either norm.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from models.errors import OptionError
from models.layers.channels_last import Conv2d
from models.layers.dropout import Dropout
from models.layers.normalization import GROUP, FrozenBatchNorm, Norm, grouped_norm
from models.model import Model, ModelOutput, Published, image_shape

NORMS: dict[str, Norm] = {"group": grouped_norm, "frozen": FrozenBatchNorm}
# Expansion, channels, blocks, stride of the first of them.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
QUARTER = 4
"""How many of the layers lead to maps of a quarter of the image's sides."""
_STEM, _LAST = 32, 1280


def scaled(channels: int, width: float) -> int:
    """Return the multiple of 8 next to channels · width, not below 90 % of it, as the authors' code does."""
    wanted = channels * width
    near = max(GROUP, int(wanted + GROUP / 2) // GROUP * GROUP)
    return near + GROUP if near < 0.9 * wanted else near


class InvertedResidual(nn.Module):
    """Widen by 1×1, filter each channel by 3×3, narrow by 1×1 without ReLU; added to the input where shapes agree."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int, norm: Norm, dilation: int = 1) -> None:
        super().__init__()
        inner = channels * expansion
        widened = [convolution(channels, inner, 1, norm)] if expansion != 1 else []
        filtered = depthwise(inner, norm, stride, dilation)
        self.conv = nn.Sequential(*widened, filtered, nn.Conv2d(inner, out, 1, bias=False), norm(out))
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to (B, out, H/stride, W/stride)."""
        narrow: Tensor = self.conv(x)
        return x + narrow if self.adds else narrow


def convolution(channels: int, out: int, kernel: int, norm: Norm, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Return Conv2d without bias and with padding that keeps the sides, the norm, ReLU6."""
    layer = Conv2d(channels, out, kernel, stride, kernel // 2 * dilation, dilation, bias=False)
    return nn.Sequential(layer, norm(out), nn.ReLU6())


def depthwise(channels: int, norm: Norm, stride: int, dilation: int) -> nn.Sequential:
    """Return the same by 3×3, of each channel apart."""
    layer = Conv2d(channels, channels, 3, stride, dilation, dilation, channels, bias=False)
    return nn.Sequential(layer, norm(channels), nn.ReLU6())


def inverted_residuals(
    channels: int, width: float, norm: Norm, output_stride: int = 32
) -> tuple[list[nn.Module], list[int]]:
    """Return the first 18 layers, the last of whose maps have 1/output_stride of the image's sides, and their widths.

    Where strides would go beyond `output_stride`, they become dilation of the blocks that follow (Chen et al., 2017,
    arXiv 1706.05587), so the weights are the same ones.
    """
    widths = [scaled(_STEM, width)]
    layers: list[nn.Module] = [convolution(channels, widths[0], 3, norm, 2)]
    reached, dilation = 2, 1
    for expansion, stage_channels, blocks, first in STAGES:
        for wanted in (first, *[1] * (blocks - 1)):
            stride = wanted if reached * wanted <= output_stride else 1
            out = scaled(stage_channels, width)
            layers.append(InvertedResidual(widths[-1], out, stride, expansion, norm, dilation))
            widths.append(out)
            reached, dilation = reached * stride, dilation * (wanted // stride)
    return layers, widths


def started(model: nn.Module) -> None:
    """Draw the weights of convolutions as torchvision does."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")


def norm_named(name: str) -> Norm:
    """Return an option `norm`; raises OptionError."""
    if name not in NORMS:
        raise OptionError(f"norm={name!r}: expected one of {', '.join(NORMS)}")
    return NORMS[name]


def check_width(width: float) -> None:
    """Refuse an option `width` that leaves no channels, or makes more than any published network has."""
    if not 0 < width <= 4:
        raise OptionError(f"width={width}: expected a factor of the channels, above 0 and at most 4; 1 as published")


class MobileNetV2(Model):
    """MobileNet-V2 on images (B, C, H, W); D = 1280.

    `norm`: "group", or "frozen" for weights from a file (`models.checkpoint`). `width` multiplies the channels; below
    1 D stays. Differs from the paper: GroupNorm, by groups of eight channels, where there is no file.
    """

    input_kinds = ("image",)
    published = Published("classifier.")
    small: ClassVar[Mapping[str, Any]] = {"input_shape": [3, 34, 40], "width": 0.25}

    def __init__(
        self,
        classes: int,
        *,
        input_shape: Sequence[int] = (3, 224, 224),
        norm: str = "group",
        width: float = 1.0,
        dropout: float = 0.2,
    ) -> None:
        super().__init__(classes, input_shape=list(input_shape), norm=norm, width=width, dropout=dropout)
        self.input_shape = image_shape(input_shape)
        check_width(width)
        layers, widths = inverted_residuals(self.input_shape[0], width, norm_named(norm))
        self.feature_dim = scaled(_LAST, max(1.0, width))
        self.features = nn.Sequential(*layers, convolution(widths[-1], self.feature_dim, 1, norm_named(norm)))
        linear = nn.Linear(self.feature_dim, classes)
        self.head = nn.Sequential(Dropout(dropout), linear)
        started(self)
        nn.init.normal_(linear.weight, 0, 0.01)
        nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, C, H, W) to features (B, D) and logits (B, classes); mask is not needed."""
        features = self.features(x).mean(dim=(2, 3))
        return ModelOutput(features, self.head(features))
