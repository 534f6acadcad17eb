"""From `--model hart+cnn` and `--set model.KEY=…` to networks that fit the data and each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import models
from federation.plan import ModelSpec
from gaitway.input_spec import InputSpec
from models.registry import model_options, models_for
from sim.errors import SettingsError


def chosen_networks(names: str, options: Mapping[str, Any], spec: InputSpec, classes: int) -> list[ModelSpec]:
    """Read names joined by `+`, which the clients take in turn.

    An option `KEY` is for every network that has it, `N.KEY` for the N-th alone. A network that can be had for any
    shape of an example is built for that of the data.

    Raises:
        SettingsError: for the number of a network that is not there, or one that does not fit the data.
    """
    chosen = names.split("+")
    own = [_shared(name, options, chosen) for name in chosen]
    for key, value in options.items():
        number, dot, name = key.partition(".")
        if dot:
            own[_index(number, len(chosen))][name] = value
    return [_fitted(name, mine, spec, classes) for name, mine in zip(chosen, own, strict=True)]


def _shared(name: str, options: Mapping[str, Any], chosen: Sequence[str]) -> dict[str, Any]:
    """Return the options that are not one network's; what no network has is left in, for `models` to refuse."""
    strange = {key for key in options if not any(key in _known(other) for other in chosen)}
    return {key: value for key, value in options.items() if "." not in key and key in {*_known(name), *strange}}


def _known(name: str) -> dict[str, Any]:
    return model_options(name) if name in models.MODELS else {}


def common_feature_dim(specs: Sequence[ModelSpec], classes: int) -> int:
    """Return the D in which all networks agree.

    Raises:
        SettingsError: where they do not, so that their prototypes could not be averaged.
    """
    dims = [_skeleton(spec, classes).feature_dim for spec in specs]
    if len(set(dims)) > 1:
        found = ", ".join(f"{spec.name} {dim}" for spec, dim in zip(specs, dims, strict=True))
        raise SettingsError(f"mixed models must have features of one length, these have: {found}; set model.N.KEY")
    return dims[0]


def _index(number: str, count: int) -> int:
    if not number.isdigit() or not 1 <= int(number) <= count:
        raise SettingsError(f"--set model.{number}.…: expected the number of a model, 1 to {count}")
    return int(number) - 1


def _fitted(name: str, options: dict[str, Any], spec: InputSpec, classes: int) -> ModelSpec:
    if name in models.MODELS and spec.kind not in models.MODELS[name].input_kinds:
        raise _unfit(name, spec)
    if "input_shape" in _known(name):
        options = {"input_shape": list(spec.shape), **options}
    chosen = ModelSpec(name=name, options=options)
    if not _skeleton(chosen, classes).takes(spec):
        raise _unfit(name, spec)
    return chosen


def _unfit(name: str, spec: InputSpec) -> SettingsError:
    fitting = ", ".join(models_for(spec)) or "none"
    return SettingsError(
        f"{name} is not for these data, whose examples are {spec.kind}s {spec.shape}; models that are: {fitting}"
    )


def _skeleton(spec: ModelSpec, classes: int) -> models.Model:
    with torch.device("meta"):  # no weights are drawn
        return models.build(spec.name, classes=classes, **spec.options)
