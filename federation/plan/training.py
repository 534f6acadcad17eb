"""A client's training: examples from its samples, their augmentation, the network and the optimizer."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from federation.plan.strict import Name, Options, Strict
from gaitway.input_spec import Fit

Change = Annotated[float, Field(ge=0, le=1)]


class Augmentation(Strict):
    """How images or windows are changed at random each time they are trained on; as it is here, nothing is changed.

    As text `flip=0.5,padding=4,scale=0.5:2`, or `rotation=0.5,sensor_loss=0.3` for windows; `none` where nothing
    is changed.
    """

    flip: float = Field(default=0.0, ge=0, le=1, description="probability of mirroring an image left to right")
    padding: int = Field(
        default=0, ge=0, le=1024, description="pixels added at each side before a crop to the original size"
    )
    scale: tuple[Annotated[float, Field(ge=0.1, le=10)], Annotated[float, Field(ge=0.1, le=10)]] = Field(
        default=(1.0, 1.0), description="an image is scaled by a factor between these, then cropped or padded"
    )
    brightness: Change = Field(default=0.0, description="maximum brightness change, in the set's deviations")
    contrast: Change = Field(default=0.0, description="maximum change of differences from the set's mean")
    saturation: Change = Field(default=0.0, description="maximum change of differences between colors")
    rotation: Change = Field(
        default=0.0,
        # left out where it is 0, so that devices of a version without it go on
        exclude_if=operator.not_,
        description="probability of rotating a window of motion sensors at random, as if the phone had another "
        "orientation",
    )
    degrees: float = Field(
        default=180.0,
        gt=0,
        le=180,
        exclude_if=lambda degrees: degrees == 180,
        description="maximum angle of the rotation; 180: any rotation",
    )

    sensor_loss: Change = Field(
        default=0.0,
        exclude_if=operator.not_,
        description="probability that a window's second sensor reads nothing, as on a device with only the first",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [word.partition("=") for word in value.replace(",", " ").split() if word != "none"]
        if any(not (equals and text) for _, equals, text in pairs):
            raise ValueError(f"expected {_AS_TEXT}")
        try:
            return {key: _numbers(text) if key == "scale" else float(text) for key, _, text in pairs}
        except ValueError as error:
            raise ValueError(f"{error}; expected {_AS_TEXT}") from error

    @model_validator(mode="after")
    def _in_order(self) -> Augmentation:
        if self.scale[0] > self.scale[1]:
            raise ValueError(f"scale = {self.scale}: put the smaller factor first")
        return self

    @property
    def is_off(self) -> bool:
        """Whether nothing is changed."""
        return self == Augmentation()

    @property
    def is_of_images(self) -> bool:
        """Whether something is changed that only images have."""
        return self.model_copy(update={"rotation": 0.0, "degrees": 180.0, "sensor_loss": 0.0}) != Augmentation()

    @property
    def is_of_windows(self) -> bool:
        """Whether something is changed that only windows of motion sensors have."""
        return bool(self.rotation or self.sensor_loss)

    def __str__(self) -> str:
        """Write it as the command line takes it."""
        off = Augmentation()
        changed = {name: value for name, value in self if value != getattr(off, name)}
        words = (
            f"{name}={':'.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in changed.items()
        )
        return ",".join(words) or "none"


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(":")]


_AS_TEXT = f"none or some of {', '.join(Augmentation.model_fields)}, such as flip=0.5,padding=4,scale=0.5:2"


class TrainingConfig(Strict):
    """How a client trains in a round, and the size of what it learns."""

    classes: int = Field(ge=1, le=10_000, description="outputs of the head")
    feature_dim: int = Field(default=192, ge=1, le=65_536, description="numbers of the embedding below the head")
    epochs: int = Field(default=1, ge=1, le=10_000, description="passes over the examples in a round")
    batch_size: int = Field(default=64, ge=1, le=65_536, description="examples of a mini-batch")
    optimizer: Literal["adam", "sgd"] = Field(default="adam", description="that a client trains with")
    lr: float = Field(default=1e-3, gt=0, le=100, description="learning rate")
    lr_schedule: Literal["constant", "polynomial"] = Field(
        default="constant",
        description="polynomial: round t of T has the learning rate lr · (1 − (t − 1)/T)^lr_power, each of its steps",
    )
    lr_power: float = Field(default=0.9, gt=0, le=10, description="of the polynomial schedule")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="of SGD")
    weight_decay: float = Field(default=0.0, ge=0, le=10, description="factor of the L2 penalty")
    augmentation: Augmentation = Field(
        default=Augmentation(), description="augmentation of images or windows, as text or by its keys"
    )
    example_clip_norm: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        # left out where there is none, so that devices of a version without it go on
        exclude_if=lambda norm: norm is None,
        description="L2 norm for clipping each example's gradient (DP-SGD); none: batch gradients",
    )
    example_noise_multiplier: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        exclude_if=operator.not_,
        description="Gaussian noise on the sum of a step's clipped gradients, in units of example_clip_norm",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of initial weights, batches and dropout")

    @model_validator(mode="after")
    def _noise_has_a_bound(self) -> TrainingConfig:
        if self.example_noise_multiplier and self.example_clip_norm is None:
            raise ValueError(
                "example_noise_multiplier needs example_clip_norm: without a bound on each gradient, no noise is enough"
            )
        return self


class ModelSpec(Strict):
    """A network by its name in `models.MODELS`, and its options."""

    name: Name
    options: Options = Field(default_factory=dict, description="the network's options")


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
    fit: Fit = Field(default="stretch", description="pad: keep an image's shape, padded with grey that has no class")


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
        description="client: by its own training windows' statistics; federated: by the sum of all clients' "
        "statistics, which devices get in `statistics`; pooled: by those of all windows laid together, in a simulation",
    )
    statistics: DataStatistics | None = Field(
        default=None, description="for federated normalization; a simulation computes them if they are missing"
    )
    split: Split = Field(
        default="temporal",
        description="temporal: the last windows of each class are the test set, no leak; the other two leak, and are "
        "for a simulation that repeats a paper",
    )
    test_share: float = Field(
        default=0.2, ge=0, lt=1, description="0: train on everything without scores, for pretraining"
    )
