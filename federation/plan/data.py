"""How a client makes training examples of its own samples."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from federation.plan.strict import Options, Strict
from gaitway.input_spec import Fit


class DataStatistics(Strict):
    """Count of samples, and the sum and square sum of each channel, which all clients are normalized with."""

    count: int = Field(ge=0, le=2**53, description="of samples")
    total: tuple[float, ...] = Field(description="sum of each channel")
    square: tuple[float, ...] = Field(description="sum of squares of each channel")


Normalization = Literal["client", "federated", "pooled", "none"]
Split = Literal["temporal", "random80", "kfold7_3"]


Side = Annotated[int, Field(ge=8, le=1024)]
"""Of an image, in pixels."""


class ImageInput(Strict):
    """Images of one size, to which every file is resampled; `pad` keeps its shape, with grey beside it."""

    kind: Literal["image"] = Field(default="image", description="of input")
    shape: tuple[Literal[1, 3], Side, Side] = Field(description="channels (1: grey, 3: colours), height, width")
    fit: Fit = Field(default="stretch", description="pad: keep an image's shape, with grey without a class beside it")


def image_input(shape: tuple[int, ...], fit: Fit = "stretch") -> ImageInput | None:
    """Describe images (channels, height, width); None for those that devices cannot have."""
    try:
        return ImageInput.model_validate({"shape": shape, "fit": fit})
    except ValidationError:
        return None


class DataSpec(Strict):
    """How a client turns its own samples into training examples; har_pipeline reads `pipeline`."""

    pipeline: Options = Field(
        default_factory=dict, description="how recordings are cut into windows; defaults if empty"
    )
    input: ImageInput | None = Field(
        default=None, description="images of this shape; none: windows of motion sensors, which `pipeline` cuts"
    )
    normalization: Normalization = Field(
        default="client",
        description="client: by the statistics of its own training windows; federated: by the sum of all clients' "
        "statistics, which devices get in `statistics`; pooled: by those of all windows laid together, in a simulation",
    )
    statistics: DataStatistics | None = Field(
        default=None, description="of federated normalization; a simulation computes them where they are missing"
    )
    split: Split = Field(
        default="temporal",
        description="temporal: the last windows of each class are the test set, no leak; the other two leak, and are "
        "for a simulation that repeats a paper",
    )
    test_share: float = Field(
        default=0.2, ge=0, lt=1, description="0: everything is trained on, so nothing can be scored: for pretraining"
    )
