"""Dense layers on a vector: Michieli and Ozay's network for the Synthetic data (2021, arXiv 2105.08982, S1.1)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from models.errors import OptionError
from models.model import Model, ModelOutput


class Dense(Model):
    """Dense 128, dense 256 and the classes; the last two are the head, so D = 128. 43 402 parameters at 10 classes.

    The paper does not say what follows the two dense layers: ReLU.
    """

    input_kinds = ("vector", "image")
    small: ClassVar[Mapping[str, Any]] = {"input_shape": [7], "hidden": [6, 8]}

    def __init__(self, classes: int, *, input_shape: Sequence[int] = (60,), hidden: Sequence[int] = (128, 256)) -> None:
        super().__init__(classes, input_shape=list(input_shape), hidden=list(hidden))
        if not input_shape or len(hidden) != 2 or min(*input_shape, *hidden) < 1:
            raise OptionError(
                f"input_shape={list(input_shape)}, hidden={list(hidden)}: expected an example's shape and two widths"
            )
        self.input_shape = tuple(input_shape)
        self.feature_dim, inner = hidden
        self.dense = nn.Sequential(nn.Linear(math.prod(input_shape), self.feature_dim), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(self.feature_dim, inner), nn.ReLU(), nn.Linear(inner, classes))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, *input_shape) to features (B, D) and logits (B, classes); mask is not needed."""
        features = self.dense(x.flatten(1))
        return ModelOutput(features, self.head(features))
