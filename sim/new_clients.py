"""New users: how a finished federation serves clients that took no part in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from federation.records import Client, Examples
from federation.seeds import generator
from federation.training.client_round import train_one
from gaitway.scores import Scores, scores_of
from sim.data.holdout import Holdout
from sim.evaluation import Matrix, Model, spread
from sim.networks.architectures import Architecture, assign_networks
from sim.simulation import Simulation

SHOTS = (0, 5, 10)
"""Labelled examples of each class that a new client personalizes with; fewer where it has fewer."""


def score_new_clients(simulation: Simulation, holdout: Holdout) -> dict[str, Any]:
    """Score the new clients' test sets: without personalization, and after a local round on k examples a class.

    Without: with the server's model, or, in a method that has none, with what a new client starts from. For the latter
    `client_models` says how the clients' own models do, each new client's mean over them.
    """
    found = {
        "clients": sorted(simulation.data.new_clients),
        "epochs": holdout.epochs,
        "shots": {str(k): spread(_matrices(simulation, holdout, k)) for k in SHOTS},
        "client_models": None,
    }
    if not simulation.setup.method.has_global_model:
        found["client_models"] = _by_clients(simulation)
    return found


def few_shot(examples: Examples, shots: int, client_id: str, seed: int) -> Examples:
    """Draw k examples of each class; the five are among the ten."""
    kept = []
    for label in sorted(set(examples.y.tolist())):
        members = (examples.y == label).nonzero().flatten()
        order = generator(seed, "labelled", client_id, label).permutation(len(members))[:shots]
        kept.append(members[torch.from_numpy(order).to(members)])
    rows = torch.cat(kept)
    return Examples(examples.x[rows], examples.y[rows])


def _matrices(simulation: Simulation, holdout: Holdout, shots: int) -> dict[str, Matrix]:
    new_clients = simulation.data.new_clients
    networks = assign_networks(new_clients, simulation.networks)
    models = {name: _model(simulation, networks[name], name, holdout, shots) for name in new_clients}
    return {name: simulation.evaluator.own(models[name], new_clients[name].test) for name in new_clients}


def _model(simulation: Simulation, network: Architecture, name: str, holdout: Holdout, shots: int) -> Model:
    if not shots:
        return Model(network.setup, _served(simulation, network, name))
    training = network.setup.training.model_copy(update={"epochs": holdout.epochs})
    setup = replace(network.setup, training=training)
    result = train_one(
        setup,
        network.initial,
        setup.method.broadcast(simulation.state, name),
        few_shot(simulation.data.new_clients[name].train, shots, name, training.seed),
        client_id=name,
        round_number=simulation.rounds.rounds + 1,
    )
    return Model(setup, result.client)


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
    means = [_mean_scores(simulation.evaluator.on_union(models, test)) for test in tests.values()]
    return {
        name: {"mean": float(np.mean([mean[name] for mean in means])), "std": float(np.std([m[name] for m in means]))}
        for name in Scores._fields
    }


def _mean_scores(matrices: Mapping[str, Matrix]) -> dict[str, float]:
    scores = [scores_of(matrix) for matrix in matrices.values()]
    return {name: float(np.mean([getattr(score, name) for score in scores])) for name in Scores._fields}
