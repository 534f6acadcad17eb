"""Dense layers on a vector: Michieli and Ozay's network for the Synthetic data (2021, arXiv 2105.08982, S1.1)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from models.errors import OptionError
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
