"""The one table of models, and how to build one by name."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gaitway.errors import did_you_mean
from gaitway.input_spec import InputSpec
from gaitway.plugins import EntryTable, PluginError, hint
from gaitway.tasks import TargetKind
from models.errors import OptionError, UnknownModelError
from models.har_cnn import Dense, HarCnn, HarCnnAlp
from models.har_features import HarFeatures
from models.hart import Hart, HartAlp
from models.image.cnn import CelebaCnn, FemnistCnn, MarginCnn, MnistCnn, PublicCnn
from models.image.mobilenet import MobileNetV2
from models.image.resnet import ResNet18
from models.image.segmentation import DeepLabV3Plus, SegmenterSmall
from models.image.vit import Vit, VitAlp
from models.layers.alp import AlpOptions
from models.model import Model


def _check(name: str, entry: object) -> str:
    if isinstance(entry, type) and issubclass(entry, Model):
        return ""
    return f"expected a subclass of models.Model, got {entry!r}"


MODELS: EntryTable[type[Model]] = EntryTable(
    "models",
    {
        "hart": Hart,
        "hart_alp": HartAlp,
        "har_features": HarFeatures,
        "har_cnn": HarCnn,
        "har_cnn_alp": HarCnnAlp,
        "dense": Dense,
        "mnist_cnn": MnistCnn,
        "femnist_cnn": FemnistCnn,
        "margin_cnn": MarginCnn,
        "celeba_cnn": CelebaCnn,
        "public_cnn": PublicCnn,
        "vit_tiny": Vit,
        "vit_tiny_alp": VitAlp,
        "resnet18": ResNet18,
        "mobilenet_v2": MobileNetV2,
        "segmenter_small": SegmenterSmall,
        "deeplab_v3plus": DeepLabV3Plus,
    },
    check=_check,
)


def build(name: str, *, classes: int, **options: Any) -> Model:
    """Build a model with fresh weights from torch's generator.

    Raises UnknownModelError or OptionError, with the nearest known name; values may come from JSON.
    """
    if name not in MODELS:
        near = did_you_mean(name, sorted(MODELS))
        raise UnknownModelError(f"model {name!r} is not known; {near}{hint('models', name)}")
    try:
        network = MODELS[name]
    except PluginError as error:
        raise UnknownModelError(str(error)) from error
    least = 1 if TargetKind.NUMBER in network.targets else 2
    if classes < least:
        raise OptionError(f"classes={classes}: expected at least {least}")
    _check_names(f"model {name!r}", options, model_options(name))
    _check_names("option 'alp'", options.get("alp") or {}, alp_options())
    built = network(classes, **options)
    _check_statistics(name, built)
    return built


def _check_statistics(name: str, network: nn.Module) -> None:
    """Refuse running statistics: a batch moves them in place, in every client that shares the tensor."""
    for place, layer in network.named_modules():
        if isinstance(layer, _NormBase) and layer.track_running_stats:
            raise OptionError(
                f"model {name!r}: its layer {place} is a {type(layer).__name__}, whose running statistics clients "
                "would share and no method averages; use nn.GroupNorm, nn.LayerNorm, or "
                "models.layers.channels_last.FrozenBatchNorm"
            )


def family(name: str) -> str:
    """Return the table's name of the same network without ALP layers; a name that has none, or is unknown, itself."""
    return (MODELS[name].without_alp if name in MODELS else None) or name


def with_alp(name: str) -> str:
    """Return the table's name of the same network with ALP layers; raises UnknownModelError if it has none."""
    for other in MODELS:
        if MODELS[other].without_alp == name:
            return other
    raise UnknownModelError(
        f"no model of the table is {name!r} with ALP layers; those with some: {', '.join(alp_models())}"
    )


def alp_models() -> list[str]:
    """Return the names of the models with ALP layers."""
    return [name for name, model in MODELS.items() if model.without_alp is not None]


def models_for(spec: InputSpec, task: str) -> list[str]:
    """Return the names of a task's models that take such examples, some of them by their option `input_shape`."""
    return [name for name in learners(task) if spec.kind in MODELS[name].input_kinds and _fits(name, spec.shape)]


def learners(task: str) -> list[str]:
    """Return the names of the models whose output fits a task."""
    return [name for name, model in MODELS.items() if model.learns(task)]


def _fits(name: str, shape: tuple[int, ...]) -> bool:
    if "input_shape" in model_options(name):
        return True
    rest = 1 if MODELS[name].any_length else 0
    return MODELS[name].input_shape[rest:] == shape[rest:]


def starting_from_published() -> list[str]:
    """Return the names of the models that can start from published weights (`models.checkpoint`)."""
    return [name for name, model in MODELS.items() if model.published is not None]


def model_options(name: str) -> dict[str, Any]:
    """Return the options of a model with their defaults."""
    known: dict[str, Any] = {}
    for layer in reversed(MODELS[name].__mro__):
        if "__init__" in vars(layer):
            known |= _keywords(layer)
    return known


def new_plan_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a new plan has for a model: those given or, if none are, the ones that it writes down."""
    return dict(options) or (dict(MODELS[name].new_plan_options) if name in MODELS else {})


def alp_options() -> dict[str, Any]:
    """Return what the option `alp` of the models with ALP layers may set, with the defaults.

    `update` is an option of its own, `alp_update`.
    """
    return {field.name: field.default for field in fields(AlpOptions) if field.name != "update"}


def _keywords(layer: type) -> dict[str, Any]:
    parameters = inspect.signature(layer).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _check_names(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    for option in given:
        if option not in known:
            raise OptionError(f"{owner} has no option {option!r}; {did_you_mean(option, sorted(known))}")
