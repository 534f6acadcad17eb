"""The networks of a federation: one for everybody, or several that its clients take in turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

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
from models.mae import with_decoder
from sim.experiment.initialization import initialize
from sim.experiment.settings import Experiment


class Architecture(NamedTuple):
    """One network: its description, how it is trained, and a client with it that has not taken part in anything."""

    model: ModelSpec
    setup: Setup
    initial: Client


def architectures(settings: Experiment, method: Method, task: Task) -> tuple[Architecture, ...]:
    """Build every network with its initial weights, which depend on the plan's seed, and a file if one was given."""
    return tuple(_architecture(spec, method, task, settings) for spec in settings.models)


def _architecture(spec: ModelSpec, method: Method, task: Task, settings: Experiment) -> Architecture:
    training = settings.training
    module = initial_model(lambda: _built(spec, settings, task), training.seed).to(settings.device)
    cast = torch.bfloat16 if settings.autocast == "bfloat16" else None
    setup = Setup(method, training, network(module, autocast=cast), task, rounds=settings.rounds.rounds)
    return Architecture(spec, setup, method.init_client_state(initial_client(module), training))


def _built(spec: ModelSpec, settings: Experiment, task: Task) -> nn.Module:
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
