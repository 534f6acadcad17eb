"""New users: how a finished federation serves clients that took no part in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from federation.records import Client
from federation.tasks.task import Statistics, Task
from federation.training.client_round import train_one
from sim.adaptation import adapt_head
from sim.data.few_labels import few_shot
from sim.data.holdout import SHOTS, Holdout
from sim.evaluation import ClientModel, spread
from sim.networks.architectures import Architecture, assign_networks
from sim.simulation import Simulation


def score_new_clients(simulation: Simulation, holdout: Holdout) -> dict[str, Any]:
    """Score the new clients' test sets: without personalization, and after a local round on the first k of each class.

    Without: with the server's model, or, in a method that has none, with what a new client starts from. For the latter
    `client_models` says how the clients' own models do, each new client's mean over them. Scored are the same examples
    whatever k is, of recordings the last in time, of which no window shares a sample with those that are learnt from.
    """
    found = {
        "clients": sorted(simulation.data.new_clients),
        "epochs": holdout.epochs,
        "shots": {str(k): spread(simulation.task, _statistics(simulation, holdout, k)) for k in SHOTS},
        "client_models": None,
        "unlabelled": _unlabelled(simulation),
    }
    if not simulation.setup.method.has_global_model:
        found["client_models"] = _by_clients(simulation)
    return found


def _statistics(simulation: Simulation, holdout: Holdout, shots: int) -> dict[str, Statistics]:
    new_clients = simulation.data.new_clients
    networks = assign_networks(new_clients, simulation.networks)
    models = {name: _model(simulation, networks[name], name, holdout, shots) for name in new_clients}
    return {name: simulation.evaluator.evaluate_client(models[name], new_clients[name].test) for name in new_clients}


def _model(simulation: Simulation, network: Architecture, name: str, holdout: Holdout, shots: int) -> ClientModel:
    if not shots:
        return ClientModel(network.setup, _served(simulation, network, name))
    # the schedule of rates is the federation's, which is over
    training = network.setup.training.model_copy(update={"epochs": holdout.epochs, "lr_schedule": "constant"})
    setup = replace(network.setup, training=training)
    result = train_one(
        setup,
        network.initial,
        setup.method.broadcast(simulation.state, name),
        few_shot(setup.task, simulation.data.new_clients[name], shots),
        client_id=name,
        round_number=simulation.round_number + 1,
    )
    return ClientModel(setup, result.client)


def _unlabelled(simulation: Simulation) -> dict[str, Any] | None:
    """Score models that have adapted to the new clients' training windows without a label of them."""
    new_clients = simulation.data.new_clients
    networks = assign_networks(new_clients, simulation.networks)
    found: dict[str, Statistics] = {}
    for name, mine in new_clients.items():
        model = ClientModel(networks[name].setup, _served(simulation, networks[name], name))
        adapted = adapt_head(model, mine.train.x, simulation.evaluator.batch)
        if adapted is None:
            return None
        found[name] = simulation.evaluator.evaluate_client(adapted, mine.test)
    return spread(simulation.task, found)


def _served(simulation: Simulation, network: Architecture, name: str) -> Client:
    method = network.setup.method
    broadcast = method.broadcast(simulation.state, name)
    if method.has_global_model:
        return method.global_model(network.initial, broadcast)
    return method.receive(network.initial, broadcast)[0]


def _by_clients(simulation: Simulation) -> dict[str, Any] | None:
    """Mean and deviation over new clients of each one's mean score under all clients' models."""
    tests = {name: client.test for name, client in simulation.data.new_clients.items() if len(client.test.y)}
    models = simulation.models(simulation.clients, simulation.scored_clients())
    if not tests or not models:
        return None
    task = simulation.task
    means = [_mean_scores(task, simulation.evaluator.evaluate_union(models, test)) for test in tests.values()]
    return {
        name: {"mean": float(np.mean([mean[name] for mean in means])), "std": float(np.std([m[name] for m in means]))}
        for name in task.metric_kinds
    }


def _mean_scores(task: Task, clients: Mapping[str, Statistics]) -> dict[str, float]:
    scores = [task.metrics(each) for each in clients.values()]
    return {name: float(np.mean([score[name] for score in scores])) for name in task.metric_kinds}
