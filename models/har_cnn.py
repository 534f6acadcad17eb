"""The small HAR CNN for weak devices, with or without an ALP layer on its last feature map.

GroupNorm: Wu and He, ECCV 2018, arXiv 1803.08494. ALP: Ek et al., FedAli, 2024; ours on a CNN.
Parameters at 6 classes: 123 302; with ALP 197 798, and 2 × 12 288 numbers in the prototype buffers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from models.errors import OptionError
from models.layers.alp import ALP, UPDATES, AlpOptions, check_update
from models.layers.channels_last import Conv1d, GroupNorm
from models.layers.dropout import Dropout
from models.model import Model, ModelOutput

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
