"""Networks that give every pixel a class; a small one for devices of two cores.

segmenter_small is ours, of known parts: an encoder of residual blocks (He et al., CVPR 2016, arXiv 1512.03385) and a
decoder that joins its deepest maps with those of a quarter of the image's sides, as DeepLab-V3+ does (Chen et al.,
ECCV 2018, arXiv 1802.02611). 332 011 parameters at 11 classes.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from gaitway.tasks import TargetKind
from models.errors import OptionError
from models.image.resnet import BasicBlock
from models.layers.channels_last import Conv2d
from models.layers.normalization import GROUP, grouped_norm
from models.model import Model, ModelOutput, image_shape


class Segmenter(Model):
    """A network whose head is a convolution of features of a lower resolution; logits have the image's."""

    input_kinds = ("image",)
    targets: ClassVar[tuple[TargetKind, ...]] = (TargetKind.MASK,)

    @abstractmethod
    def extract(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to what enters the head (B, D, h, w)."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, C, H, W) to features (B, D, h, w) and logits (B, classes, H, W); mask is not needed."""
        features = self.extract(x)
        return ModelOutput(features, resized(self.head(features), x))


class SegmenterSmall(Segmenter):
    """Four halvings, a decoder at a quarter of the sides, D = `feature_dim`; images of any sides.

    `channels`: after each halving.
    """

    small: ClassVar[Mapping[str, Any]] = {"input_shape": [3, 18, 26], "channels": [8, 8, 16, 16], "feature_dim": 8}

    def __init__(
        self,
        classes: int,
        *,
        input_shape: Sequence[int] = (3, 180, 240),
        channels: Sequence[int] = (16, 32, 64, 128),
        feature_dim: int = 48,
    ) -> None:
        super().__init__(classes, input_shape=list(input_shape), channels=list(channels), feature_dim=feature_dim)
        self.input_shape = image_shape(input_shape)
        if len(channels) != 4 or any(width < 1 or width % GROUP for width in (*channels, feature_dim)):
            raise OptionError(
                f"channels={list(channels)}, feature_dim={feature_dim}: expected four widths and one, all of them "
                f"multiples of {GROUP}"
            )
        self.feature_dim = feature_dim
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

    def extract(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to (B, D, H/4, W/4), rounded up."""
        quarter = self.quarter(self.stem(x))
        deep = resized(self.from_deep(self.deep(quarter)), quarter)
        joined: Tensor = self.join(deep + self.from_quarter(quarter))
        return joined


def resized(maps: Tensor, like: Tensor) -> Tensor:
    """Interpolate maps (B, C, h, w) bilinearly to the sides of another (…, H, W)."""
    return functional.interpolate(maps, size=like.shape[-2:], mode="bilinear", align_corners=False)


def _convolution(channels: int, out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(Conv2d(channels, out, 3, stride, padding=1, bias=False), grouped_norm(out), nn.ReLU())
