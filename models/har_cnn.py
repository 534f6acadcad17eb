"""Small networks: a CNN for HAR on weak devices, with or without an ALP layer on its last map, and a dense network.

The dense network is Michieli and Ozay's for the Synthetic data (2021, arXiv 2105.08982, S1.1).
GroupNorm: Wu and He, ECCV 2018, arXiv 1803.08494. ALP: Ek et al., FedAli, 2024; ours on a CNN.
Parameters at 6 classes: 123 302; with ALP 197 798, and 2 × 12 288 numbers in the prototype buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from models.errors import OptionError
from models.layers.alp import ALP, UPDATES, AlpOptions, check_update
from models.layers.channels_last import Conv1d, GroupNorm
from models.layers.dropout import Dropout
from models.model import FeaturePlace, Model, ModelOutput, dense_head_output


class Dense(Model):
    """Dense 128, dense 256 and the classes; the last two are the head. 43 402 parameters at 10 classes.

    D = 128 where features are what enters the head, 256 with `features_at="last_layer"`. The paper does not say what
    follows the two dense layers: ReLU.
    """

    input_kinds = ("vector", "image")
    feature_places = ("head", "last_layer")
    head: nn.Sequential
    small: ClassVar[Mapping[str, Any]] = {"input_shape": [7], "hidden": [6, 8]}

    def __init__(
        self,
        classes: int,
        *,
        input_shape: Sequence[int] = (60,),
        hidden: Sequence[int] = (128, 256),
        features_at: FeaturePlace = "head",
    ) -> None:
        super().__init__(classes, input_shape=list(input_shape), hidden=list(hidden), features_at=features_at)
        if not input_shape or len(hidden) != 2 or min(*input_shape, *hidden) < 1:
            raise OptionError(
                f"input_shape={list(input_shape)}, hidden={list(hidden)}: expected an example's shape and two widths"
            )
        self.input_shape = tuple(input_shape)
        outer, inner = hidden
        self.feature_dim = outer if features_at == "head" else inner
        self.dense = nn.Sequential(nn.Linear(math.prod(input_shape), outer), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(outer, inner), nn.ReLU(), nn.Linear(inner, classes))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, *input_shape) to features (B, D) and logits (B, classes); mask is not needed."""
        return dense_head_output(self.head, self.dense(x.flatten(1)), self.features_at)


STRIDES = (4, 2, 1)
_GROUPS = 8


def convolution(channels: int, out: int, stride: int) -> nn.Sequential:
    """Return Conv1d(kernel 3s, stride s, padding s), GroupNorm, SiLU: (B, C, T) → (B, out, T/s)."""
    return nn.Sequential(Conv1d(channels, out, 3 * stride, stride, stride), GroupNorm(_GROUPS, out), nn.SiLU())


class HarCnn(Model):
    """Three convolutions, mean over time, two dense layers (the head) on windows (B, 128, 6).

    `channels` are the widths of the first two convolutions; the third is `feature_dim` wide, so clients of
    different capacity share features and prototypes.
    """

    input_shape = (128, 6)
    input_kinds = ("window",)
    any_length = True  # the mean over time
    small: ClassVar[Mapping[str, Any]] = {"channels": [8, 16], "feature_dim": 24, "hidden": 10}

    def __init__(
        self,
        classes: int,
        *,
        channels: Sequence[int] = (64, 96),
        feature_dim: int = 192,
        hidden: int = 128,
        dropout: float = 0.3,
    ) -> None:
        super().__init__(classes, channels=list(channels), feature_dim=feature_dim, hidden=hidden, dropout=dropout)
        widths = [*channels, feature_dim]
        if len(widths) != len(STRIDES) or any(width < _GROUPS or width % _GROUPS for width in widths):
            raise OptionError(
                f"channels={list(channels)}, feature_dim={feature_dim}: expected two channel counts, "
                f"and all three multiples of {_GROUPS}"
            )
        self.feature_dim = feature_dim
        inputs = [6, *channels]
        self.convolutions = nn.Sequential(
            *(convolution(i, o, s) for i, o, s in zip(inputs, widths, STRIDES, strict=True))
        )
        self.head = nn.Sequential(
            nn.Linear(feature_dim, hidden), nn.SiLU(), Dropout(dropout), nn.Linear(hidden, classes)
        )

    def align(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Map the last feature map (B, 16, feature_dim) to what is pooled; the plain CNN leaves it."""
        return tokens

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, 128, 6) to features (B, D) and logits (B, classes); mask (B,) is 0 for padding."""
        tokens = self.convolutions(x.transpose(1, 2)).transpose(1, 2)
        features = self.align(tokens, mask).mean(dim=1)
        return ModelOutput(features, self.head(features))


class HarCnnAlp(HarCnn):
    """The CNN with ALP on the tokens of the last convolution, then LayerNorm (ALP's output has length 1)."""

    without_alp = "har_cnn"
    small: ClassVar[Mapping[str, Any]] = {
        "channels": [8, 16],
        "feature_dim": 24,
        "hidden": 10,
        "prototypes": [13],
        "alp": {"gamma": 0.5},
    }

    def __init__(
        self,
        classes: int,
        *,
        prototypes: Sequence[int] = (64,),
        alp: dict[str, Any] | None = None,
        alp_update: str = UPDATES[0],
        feature_dim: int = 192,
        **sizes: Any,
    ) -> None:
        super().__init__(classes, feature_dim=feature_dim, **sizes)
        if len(prototypes) != 1:
            raise OptionError(f"prototypes={list(prototypes)}: the CNN has one ALP layer, so one count")
        self.options |= {"prototypes": list(prototypes), "alp": dict(alp or {}), "alp_update": alp_update}
        self.alp = ALP(feature_dim, prototypes[0], AlpOptions(update=check_update(alp_update), **(alp or {})))
        self.norm = nn.LayerNorm(feature_dim)

    def align(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Draw tokens (B, 16, feature_dim) to their prototypes."""
        aligned: Tensor = self.norm(self.alp(tokens, mask))
        return aligned
