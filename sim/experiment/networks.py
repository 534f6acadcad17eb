"""The networks of a run: how its options name them, and each with its initial weights, built for its data."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

import models
from federation.method import Method
from federation.plan import ModelSpec
from federation.records import Client
from federation.tasks.task import Task
from federation.training.forward import Moments, initial_client, initial_model, network
from federation.training.local_round import Setup
from federation.training.window_changes import ChannelScale
from gaitway.input_spec import InputSpec
from models.mae import with_decoder
from models.registry import learners, model_options, models_for, new_plan_options
from sim.errors import SettingsError
from sim.experiment.initialization import initialize
from sim.experiment.settings import Experiment


class Architecture(NamedTuple):
    """One network: its description, how it is trained, and a client with it that has not taken part in anything."""

    model: ModelSpec
    setup: Setup
    initial: Client


@dataclass(frozen=True)
class RunPlan:
    """What a run does: its settings, which go together, and the method, task and networks that they name."""

    settings: Experiment
    method: Method
    task: Task

    @cached_property
    def networks(self) -> tuple[Architecture, ...]:
        """The networks with their initial weights, of the plan's seed and the file that was given, if any.

        They are built when they are first asked for: analyses need none.
        """
        return tuple(_architecture(spec, self.method, self.task, self.settings) for spec in self.settings.models)


def _architecture(spec: ModelSpec, method: Method, task: Task, settings: Experiment) -> Architecture:
    training = settings.training
    module = initial_model(lambda: _module(spec, settings, task), training.seed).to(settings.device)
    cast = torch.bfloat16 if settings.autocast == "bfloat16" else None
    setup = Setup(method, training, network(module, autocast=cast), task, rounds=settings.rounds.rounds)
    return Architecture(spec, setup, method.init_client_state(initial_client(module), training))


def _module(spec: ModelSpec, settings: Experiment, task: Task) -> nn.Module:
    module = models.build(spec.name, classes=settings.training.classes, **spec.options)
    if settings.init is not None:
        initialize(module, settings.init)
    return with_decoder(module, task.decoder)


def for_data(
    choices: Sequence[Architecture], moments: Moments | None, channels: ChannelScale | None
) -> tuple[Architecture, ...]:
    """Have the networks normalize images that are kept as bytes, and know by what all windows were normalized."""
    return tuple(choice._replace(setup=replace(choice.setup, moments=moments, channels=channels)) for choice in choices)


def assign_networks(names: Collection[str], choices: Sequence[Architecture]) -> dict[str, Architecture]:
    """Give client i, in the order of the ids, network i mod m."""
    return {name: choices[i % len(choices)] for i, name in enumerate(sorted(names))}


def chosen_networks(
    names: str, options: Mapping[str, Any], spec: InputSpec, classes: int, task: str
) -> list[ModelSpec]:
    """Read names joined by `+`, which the clients take in turn.

    An option `KEY` is for every network that has it, `N.KEY` for the N-th alone. A network that can be had for any
    shape of an example is built for that of the data.

    Raises:
        SettingsError: for the number of a network that is not there, or one that does not fit the data or the task.
    """
    chosen = names.split("+")
    own = [_shared(name, options, chosen) for name in chosen]
    for key, value in options.items():
        number, dot, name = key.partition(".")
        if dot:
            own[_index(number, len(chosen))][name] = value
    for name in chosen:
        _check_task(name, spec, task)
    return [_fitted(name, own_options, spec, classes, task) for name, own_options in zip(chosen, own, strict=True)]


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


def _check_task(name: str, spec: InputSpec, task: str) -> None:
    if name not in models.MODELS or models.MODELS[name].learns(task):
        return
    own = models.MODELS[name].learnt_tasks()
    candidates, all_of_it = models_for(spec, task), learners(task)
    if candidates or not all_of_it:
        fitting = f"models of these {spec.kind}s that do: {', '.join(candidates) or 'none'}"
    else:
        kinds = " or ".join(sorted({f"{kind}s" for model in all_of_it for kind in models.MODELS[model].input_kinds}))
        fitting = f"none of these {spec.kind}s does; on {kinds} {', '.join(all_of_it)} do"
    raise SettingsError(f"--task {task} with --model {name}: {name} learns {' or '.join(own)}, not {task}; {fitting}")


def _fitted(name: str, options: dict[str, Any], spec: InputSpec, classes: int, task: str) -> ModelSpec:
    if name in models.MODELS and spec.kind not in models.MODELS[name].input_kinds:
        raise _unfit(name, spec, task)
    options = new_plan_options(name, options)
    if "input_shape" in _known(name):
        options = {"input_shape": list(spec.shape), **options}
    chosen = ModelSpec(name=name, options=options)
    if not _skeleton(chosen, classes).accepts(spec):
        raise _unfit(name, spec, task)
    return chosen


def _unfit(name: str, spec: InputSpec, task: str) -> SettingsError:
    fitting = ", ".join(models_for(spec, task)) or "none"
    return SettingsError(
        f"{name} is not for these data, whose examples are {spec.kind}s {spec.shape}; models for {task} that are: "
        f"{fitting}"
    )


def _skeleton(spec: ModelSpec, classes: int) -> models.Model:
    return _initial_network(spec.name, json.dumps(spec.options, sort_keys=True), classes)


@lru_cache(maxsize=32)
def _initial_network(name: str, options: str, classes: int) -> models.Model:
    with torch.device("meta"):  # no weights are drawn
        return models.build(name, classes=classes, **json.loads(options))
