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
from models.model import FeaturePlace, Model, ModelOutput, image_shape


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
