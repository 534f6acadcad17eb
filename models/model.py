"""The base of every network of the table."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from models.errors import OptionError


class ModelOutput(NamedTuple):
    """Features (B, D), what enters the head, and logits (B, classes)."""

    features: Tensor
    logits: Tensor


class Model(nn.Module, ABC):
    """A classifier with a feature extractor below and, under the name `head`, the layers above it.

    A subclass's options are keywords with defaults. `options` rebuilds it with `models.build`; values are JSON's.
    `input_shape` is one example's shape, `feature_dim` the D of what enters the head.
    `channels_dim` is the dimension of `input_shape` whose entries are normalised each by a mean and a deviation.
    """

    head: nn.Module
    input_shape: tuple[int, ...]
    feature_dim: int
    channels_dim: int = 0

    def __init__(self, classes: int, **options: Any) -> None:
        super().__init__()
        self.classes = classes
        self.options = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}

    @property
    def input_channels(self) -> int:
        """How many numbers the mean of an input's normalisation has."""
        return self.input_shape[self.channels_dim]

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, *input_shape) to features (B, D) and logits (B, classes); mask (B,) is 0 for padding."""


def image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Check an option `input_shape` of images: (channels, height, width)."""
    if len(shape) != 3 or any(not isinstance(size, int) or size < 1 for size in shape):
        raise OptionError(f"input_shape={list(shape)}: expected [channels, height, width], each at least 1")
    channels, height, width = shape
    return channels, height, width
