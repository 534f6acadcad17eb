"""The networks of a federation: one for everybody, or several that its clients take in turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import models
from federation.client_round import Setup
from federation.forward import initial_client, initial_model, network
from federation.method import Method
from federation.methods import method_from_json
from federation.plan import ModelSpec, Task
from federation.records import Client
from sim.errors import SettingsError


class Architecture(NamedTuple):
    """One network: its description, how it is trained, and a client with it that has not taken part in anything."""

    model: ModelSpec
    setup: Setup
    initial: Client


def architectures(
    specs: Sequence[ModelSpec], method: dict[str, object], task: Task, device: str
) -> tuple[Architecture, ...]:
    """Build every network with its initial weights, which depend on the task's seed alone.

    Raises:
        SettingsError: for several networks, if the method needs all clients to have one.
    """
    chosen = method_from_json(method)
    if len(specs) > 1 and not chosen.mixes_architectures:
        names = " + ".join(spec.name for spec in specs)
        raise SettingsError(f"{chosen.name} needs one model for all clients, {names} came; mix them with fedproto")
    return tuple(_architecture(spec, chosen, task, device) for spec in specs)


def _architecture(spec: ModelSpec, method: Method, task: Task, device: str) -> Architecture:
    module = initial_model(lambda: models.build(spec.name, classes=task.classes, **spec.options), task.seed)
    initial = initial_client(module.to(device))
    return Architecture(spec, Setup(method, task, network(module)), method.join(initial, task))


def in_turn(names: Collection[str], choices: Sequence[Architecture]) -> dict[str, Architecture]:
    """Give client i, in the order of the ids, network i mod m."""
    return {name: choices[i % len(choices)] for i, name in enumerate(sorted(names))}
