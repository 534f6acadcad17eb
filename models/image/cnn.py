"""The papers' small CNNs on images (B, C, H, W): convolutions, then dense layers.

mnist_cnn, femnist_cnn: Tan et al., 'FedProto', AAAI 2022, arXiv 2105.00243, and Qiao et al., 'Boosting Federated
Learning Convergence with Prototype Regularization', 2023, arXiv 2307.10575, whose '2 convolutional layers and 2 fully
connected layers' name no sizes. margin_cnn, celeba_cnn: Michieli and Ozay, 'Prototype Guided Federated Learning of
Visual Feature Representations', 2021, arXiv 2105.08982, S1.2; celeba_cnn is LEAF's (Caldas et al., 2018, arXiv
1812.01097). public_cnn: the CIFAR-10 network of pfl-research's benchmarks (Granqvist et al., 2024, arXiv 2404.06430).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from models.errors import OptionError
from models.layers.channels_last import Conv2d, MaxPool2d
from models.layers.dropout import ChannelDropout, Dropout
from models.model import FeaturePlace, Model, ModelOutput, dense_head_output, image_shape

_GROUPS = 8


class ConvolutionStage(NamedTuple):
    """One convolution of kernel × kernel, and a max pooling over pool × pool without overlap."""

    kernel: int
    padding: int = 0
    pool: int = 2

    def size(self, size: int) -> int:
        """Return the height or width that is left of an input's."""
        return (size + 2 * self.padding - self.kernel + 1) // self.pool


def convolution(channels: int, out: int, stage: ConvolutionStage, norm: str = "none") -> nn.Sequential:
    """Return Conv2d, GroupNorm if wanted, max pooling, ReLU: (B, C, H, W) → (B, out, H′, W′)."""
    if norm not in ("none", "group") or (norm == "group" and out % _GROUPS):
        raise OptionError(f"norm={norm!r}, {out} channels: expected 'none', or 'group' and multiples of {_GROUPS}")
    layers: list[nn.Module] = [Conv2d(channels, out, stage.kernel, padding=stage.padding)]
    layers += [nn.GroupNorm(_GROUPS, out)] if norm == "group" else []
    layers += [MaxPool2d(stage.pool)] if stage.pool > 1 else []
    return nn.Sequential(*layers, nn.ReLU())


def convolutions(
    shape: tuple[int, int, int], channels: Sequence[int], stages: Sequence[ConvolutionStage], norm: str = "none"
) -> tuple[nn.Sequential, int]:
    """Return the stages one after the other, and how many numbers they make of an image of that shape."""
    if len(channels) != len(stages) or min(channels) < 1:
        raise OptionError(f"channels={list(channels)}: expected {len(stages)} channel counts, each at least 1")
    _, height, width = shape
    for stage in stages:
        height, width = stage.size(height), stage.size(width)
    if min(height, width) < 1:
        raise OptionError(f"input_shape={list(shape)}: too small for {len(stages)} convolutions and their pooling")
    layers = zip([shape[0], *channels], channels, stages, strict=False)
    return nn.Sequential(*(convolution(i, o, s, norm) for i, o, s in layers)), channels[-1] * height * width


class ImageCnn(Model):
    """Convolutions, a dense layer with ReLU, and a dense layer to the classes; the defaults are Tan et al.'s.

    `head_layers=1`: the feature is what the last layer gets, as Tan et al. measure prototypes (D = `hidden`).
    `head_layers=2`: both dense layers are the head, as methods that keep the head on the device want it; Tan et al.'s
    FedPer sends the convolutions only. The feature is the flattened map, or with `features_at="last_layer"` what the
    last layer gets here, too. Names of the parameters differ.
    """

    input_kinds = ("image",)
    feature_places = ("head", "last_layer")
    head: nn.Sequential
    stages: ClassVar[tuple[ConvolutionStage, ...]]
    map_dropout_layer: ClassVar[type[Dropout]] = Dropout

    def __init__(
        self,
        classes: int,
        *,
        input_shape: Sequence[int] = (1, 28, 28),
        channels: Sequence[int] = (10, 20),
        hidden: int = 50,
        map_dropout: float = 0.5,
        dropout: float = 0.5,
        head_layers: int = 1,
        features_at: FeaturePlace = "head",
    ) -> None:
        super().__init__(
            classes, input_shape=list(input_shape), channels=list(channels), hidden=hidden,
            map_dropout=map_dropout, dropout=dropout, head_layers=head_layers, features_at=features_at,
        )  # fmt: skip
        if head_layers not in (1, 2):
            raise OptionError(f"head_layers={head_layers}: expected 1 or 2 of the two dense layers")
        self.input_shape = image_shape(input_shape)
        self.convolutions, flat = convolutions(self.input_shape, channels, self.stages)
        self.drop_maps = self.map_dropout_layer(map_dropout)
        dense = [nn.Linear(flat, hidden), nn.ReLU()]
        last = [Dropout(dropout), nn.Linear(hidden, classes)]
        below, above = (dense, last) if head_layers == 1 else ([], dense + last)
        self.dense, self.head = nn.Sequential(*below), nn.Sequential(*above)
        if head_layers == 1:
            self.features_at = "head"  # which the last layer alone is
        self.feature_dim = flat if head_layers == 2 and features_at == "head" else hidden

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, C, H, W) to features (B, D) and logits (B, classes); mask is not needed."""
        maps = self.convolutions(x).contiguous()  # in the order in which dropout's masks and `flatten` go through them
        return dense_head_output(self.head, self.dense(self.drop_maps(maps).flatten(1)), self.features_at)


class MnistCnn(ImageCnn):
    """Tan et al.'s CNN: 21 840 parameters at 28×28 and 10 classes; `channels` (10, 18), (10, 20), (10, 22) mixed.

    The sizes are those of their code; the paper gives the count and D = 50.
    """

    stages = (ConvolutionStage(5), ConvolutionStage(5))
    map_dropout_layer = ChannelDropout
    small: ClassVar[Mapping[str, Any]] = {"input_shape": [1, 20, 24], "channels": [3, 4], "hidden": 16}


class FemnistCnn(ImageCnn):
    """Tan et al.'s CNN for FEMNIST, whose first kernel is 3 × 3; their images are LEAF's, 128×128 (849 332 at 62).

    Differs from the paper: `input_shape` is 28×28 by default, the size in which EMNIST's letters come.
    """

    stages = (ConvolutionStage(3), ConvolutionStage(5))
    map_dropout_layer = ChannelDropout
    small: ClassVar[Mapping[str, Any]] = {"input_shape": [1, 20, 24], "channels": [3, 4], "hidden": 16}


class MarginCnn(ImageCnn):
    """Michieli and Ozay's CNN for MNIST and FEMNIST: 5×5×32, 5×5×64, dense 256; 857 738 parameters at 10 classes.

    The paper does not say the padding: 'same', as in McMahan et al., 2017, and LEAF, whose layers these are.
    """

    stages = (ConvolutionStage(5, padding=2), ConvolutionStage(5, padding=2))
    small: ClassVar[Mapping[str, Any]] = {"input_shape": [1, 8, 12], "channels": [3, 4], "hidden": 16}

    def __init__(
        self,
        classes: int,
        *,
        channels: Sequence[int] = (32, 64),
        hidden: int = 256,
        map_dropout: float = 0.0,
        dropout: float = 0.0,
        head_layers: int = 2,
        **sizes: Any,
    ) -> None:
        super().__init__(
            classes, channels=channels, hidden=hidden, map_dropout=map_dropout,
            dropout=dropout, head_layers=head_layers, **sizes,
        )  # fmt: skip


class PublicCnn(ImageCnn):
    """pfl-research's CNN for CIFAR-10: one pooling after both convolutions; 1 626 442 parameters at 10 classes."""

    stages = (ConvolutionStage(3, pool=1), ConvolutionStage(3))
    small: ClassVar[Mapping[str, Any]] = {"input_shape": [3, 10, 8], "channels": [3, 4], "hidden": 16}

    def __init__(
        self,
        classes: int,
        *,
        input_shape: Sequence[int] = (3, 32, 32),
        channels: Sequence[int] = (32, 64),
        hidden: int = 128,
        map_dropout: float = 0.25,
        head_layers: int = 2,
        **sizes: Any,
    ) -> None:
        super().__init__(
            classes, input_shape=input_shape, channels=channels, hidden=hidden,
            map_dropout=map_dropout, head_layers=head_layers, **sizes,
        )  # fmt: skip
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(layer.weight)


class CelebaCnn(Model):
    """Four 3×3×32 convolutions, each with 2×2 pooling, and one dense layer, the head; 30 498 parameters at 2 classes.

    Differs from LEAF: GroupNorm for BatchNorm, and pooling drops an odd last row. `norm="none"`: as the paper says it.
    """

    input_kinds = ("image",)
    stages: ClassVar[tuple[ConvolutionStage, ...]] = (ConvolutionStage(3, padding=1),) * 4
    small: ClassVar[Mapping[str, Any]] = {"input_shape": [3, 16, 32], "channels": [8, 8, 8, 8]}

    def __init__(
        self,
        classes: int,
        *,
        input_shape: Sequence[int] = (3, 84, 84),
        channels: Sequence[int] = (32, 32, 32, 32),
        norm: str = "group",
    ) -> None:
        super().__init__(classes, input_shape=list(input_shape), channels=list(channels), norm=norm)
        self.input_shape = image_shape(input_shape)
        self.convolutions, self.feature_dim = convolutions(self.input_shape, channels, self.stages, norm)
        self.head = nn.Linear(self.feature_dim, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, C, H, W) to features (B, D) and logits (B, classes); mask is not needed."""
        features = self.convolutions(x).flatten(1)
        return ModelOutput(features, self.head(features))
