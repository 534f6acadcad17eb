"""The base of every network of the table."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from gaitway.input_spec import InputKind, InputSpec
from gaitway.tasks import TASKS, TargetKind
from models.errors import OptionError

FeaturePlace = Literal["head", "last_layer", "encoder"]
"""Features are what enters the head, what enters its last layer, or the last maps of an encoder."""


class ModelOutput(NamedTuple):
    """Features (B, D) of `features_at`, and logits (B, classes); of pixels (B, D, h, w) and (B, classes, H, W)."""

    features: Tensor
    logits: Tensor


class Published(NamedTuple):
    """How the names in a file of published weights, in torchvision's layout, are a network's own.

    `classifier` in the file is the network's head; what begins with `unused` is in the file alone, with `fresh` in the
    network alone.
    """

    classifier: str
    unused: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()


class Model(nn.Module, ABC):
    """A classifier with a feature extractor below and, under the name `head`, the layers above it.

    A subclass's options are keywords with defaults. `options` rebuilds it with `models.build`; values are JSON's.
    `input_kinds` are the kinds of examples that it takes, `input_shape` is one example's shape. `features_at` says
    where it takes the features that prototypes and analyses are made from, and `feature_dim` is their D. The head stays
    where it is. A network that offers several `feature_places` has an option `features_at`.
    A network with ALP layers names in `without_alp` the table's entry of the same one without.
    `any_length`: windows of another length than `input_shape`'s do as well. `takes_raw_input`: it is given examples as
    they were measured, and a plan with it has `data.normalization = "none"`. `targets` are what its output can be
    compared with (a number: the logit of one class), `published` which weights it can start from (`models.checkpoint`),
    `small` are options of a size that tests train in a moment. `new_plan_options` are written into a new plan that
    names no option, so that plans from before keep the network that they began with.
    """

    head: nn.Module
    input_shape: tuple[int, ...]
    feature_dim: int
    features_at: FeaturePlace
    feature_places: ClassVar[tuple[FeaturePlace, ...]] = ("head",)
    input_kinds: ClassVar[tuple[InputKind, ...]]
    targets: ClassVar[tuple[TargetKind, ...]] = (TargetKind.CLASS, TargetKind.NUMBER)
    any_length: ClassVar[bool] = False
    takes_raw_input: ClassVar[bool] = False
    without_alp: ClassVar[str | None] = None
    published: ClassVar[Published | None] = None
    small: ClassVar[Mapping[str, Any]] = {}
    new_plan_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, classes: int, **options: Any) -> None:
        super().__init__()
        self.classes = classes
        self.options = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
        self.features_at = options.get("features_at", "head")
        if self.features_at not in self.feature_places:
            raise OptionError(f"features_at={self.features_at!r}: expected one of {', '.join(self.feature_places)}")

    @classmethod
    def learns(cls, task: str) -> bool:
        """Say whether its output fits a task of that name."""
        return task in TASKS and TASKS[task].target in cls.targets

    @classmethod
    def learnt_tasks(cls) -> list[str]:
        """Return the names of the tasks that its output fits."""
        return [task for task in TASKS if cls.learns(task)]

    def accepts(self, spec: InputSpec) -> bool:
        """Say whether examples of this kind and shape are its input."""
        rest = 1 if self.any_length else 0
        return spec.kind in self.input_kinds and spec.shape[rest:] == self.input_shape[rest:]

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        """Map x (B, *input_shape) to features (B, D) and logits (B, classes); mask (B,) is 0 for padding."""


def dense_head_output(head: nn.Sequential, hidden: Tensor, features_at: FeaturePlace) -> ModelOutput:
    """Return features and logits of what enters a head (B, D): a dense layer, its activation, ..., a dense layer."""
    if features_at == "head":
        return ModelOutput(hidden, head(hidden))
    features: Tensor = head[:2](hidden)
    return ModelOutput(features, head[2:](features))


def image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Check an option `input_shape` of images: (channels, height, width)."""
    if len(shape) != 3 or any(not isinstance(size, int) or size < 1 for size in shape):
        raise OptionError(f"input_shape={list(shape)}: expected [channels, height, width], each at least 1")
    channels, height, width = shape
    return channels, height, width
