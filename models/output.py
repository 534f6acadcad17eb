"""What every model returns."""

from typing import NamedTuple

from torch import Tensor


class ModelOutput(NamedTuple):
    """Features (B, D), what enters the head, and logits (B, classes)."""

    features: Tensor
    logits: Tensor
