"""ResNet18 with torchvision's names of parameters, but for `head`, which is their `fc`.

He et al., 'Deep Residual Learning for Image Recognition', CVPR 2016, arXiv 1512.03385, table 1.
GroupNorm in place of BatchNorm: Wu and He, ECCV 2018, arXiv 1803.08494; in federated learning Hsieh et al., ICML
2020, arXiv 1910.00189. Parameters at 10 classes: 11 181 642, 11 689 512 at 1000, with either norm.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from models.errors import OptionError
from models.layers.normalization import FrozenBatchNorm, Norm
from models.model import Model, ModelOutput, Published, image_shape

_GROUPS = 32


def group_norm(channels: int) -> nn.Module:
    """Return GroupNorm with 32 groups, or as many as such narrow channels allow."""
    return nn.GroupNorm(math.gcd(_GROUPS, channels), channels)


NORMS: dict[str, Norm] = {"group": group_norm, "frozen": FrozenBatchNorm}


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and the shortcut, which is projected where stride or width change."""

    def __init__(self, channels: int, out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.bn1 = norm(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = norm(out)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), norm(out))

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to (B, out, H/stride, W/stride)."""
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu(inner + self.downsample(x))
        return out


class ResNet18(Model):
    """ResNet18 on images (B, C, H, W); the head is the last layer, D = 8 · `width`.

    `norm`: "group", or "frozen" for weights from a file (`models.checkpoint`; never an option, for options travel
    to devices, and a path among them would let a plan read files there).
    `stem_strides`: of the first convolution and the max pooling; Tan et al.'s clients have (2, 2), and with
    heterogeneous models half of them (1, 4), so that all parameters keep their shapes.
    """

    input_kinds = ("image",)
    published = Published("fc.")
    small: ClassVar[Mapping[str, Any]] = {"input_shape": [3, 32, 24], "width": 16}

    def __init__(
        self,
        classes: int,
        *,
        input_shape: Sequence[int] = (3, 32, 32),
        norm: str = "group",
        stem_strides: Sequence[int] = (2, 2),
        width: int = 64,
    ) -> None:
        super().__init__(
            classes, input_shape=list(input_shape), norm=norm, stem_strides=list(stem_strides), width=width
        )
        self.input_shape = image_shape(input_shape)
        if norm not in NORMS:
            raise OptionError(f"norm={norm!r}: expected one of {', '.join(NORMS)}")
        if len(stem_strides) != 2 or min(*stem_strides, width) < 1:
            raise OptionError(f"stem_strides={list(stem_strides)}, width={width}: expected two strides, all at least 1")
        first, second = stem_strides
        self.feature_dim = 8 * width
        self.conv1 = nn.Conv2d(self.input_shape[0], width, 7, first, padding=3, bias=False)
        self.bn1 = NORMS[norm](width)
        self.relu, self.maxpool = nn.ReLU(), nn.MaxPool2d(3, second, padding=1)
        self.layer1 = _layer(width, width, 1, NORMS[norm])
        self.layer2 = _layer(width, 2 * width, 2, NORMS[norm])
        self.layer3 = _layer(2 * width, 4 * width, 2, NORMS[norm])
        self.layer4 = _layer(4 * width, 8 * width, 2, NORMS[norm])
        self.head = nn.Linear(self.feature_dim, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, C, H, W) to features (B, D) and logits (B, classes); mask is not needed."""
        maps = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        features = maps.mean(dim=(2, 3))
        return ModelOutput(features, self.head(features))


def _layer(channels: int, out: int, stride: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(BasicBlock(channels, out, stride, norm), BasicBlock(out, out, 1, norm))
