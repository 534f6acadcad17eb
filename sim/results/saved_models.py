"""The models that a run leaves for `python -m export`: the server's, and each client's of the best round."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

from federation.records import Client
from models.checkpoint import CheckpointInfo, save_checkpoint
from sim.data.federated_data import FederatedData
from sim.data.sources import source_named
from sim.experiment import Experiment
from sim.networks.architectures import Architecture
from sim.simulation import Simulation

SERVER = "global"


def save_models(simulation: Simulation, settings: Experiment, out: Path) -> None:
    """Write `models/{client}.safetensors`, each with its own network, and `models/global.safetensors` if there is one.

    A client that serves with a part of what it keeps (Ditto's personal model) leaves that part.
    """
    if simulation.setup.method.has_global_model:
        _save(out, SERVER, simulation.server_model(), simulation.networks[0], settings, simulation)
    for name, client in simulation.best_round.best.clients.items():
        _save(out, name, client, simulation.network_of[name], settings, simulation)


def _save(
    out: Path, name: str, client: Client, network: Architecture, settings: Experiment, simulation: Simulation
) -> None:
    taken = source_named(settings.dataset).input_spec(settings.dataset_options, settings.data.pipeline)
    info = CheckpointInfo(
        model=network.model.name,
        options=network.model.options,
        labels=simulation.data.labels,
        input=taken.normalized_by(*_normalization(name, simulation.data)),
        method=settings.method["name"],
        round=simulation.round_number if name == SERVER else simulation.best_round.best.round,
        federation=f"sim-{settings.dataset}",
    )
    served = network.setup.method.serving_model(client)
    save_checkpoint(out / "models" / f"{name}.safetensors", {**served.params, **served.buffers}, info)


def _normalization(name: str, data: FederatedData) -> tuple[tuple[float, ...], tuple[float, ...]]:
    # under `client` normalization the server's model has no statistics of its own: it gets the sum of all clients'
    statistics = data.statistics.get(name) or reduce(add, data.statistics.values())
    return tuple(statistics.mean.tolist()), tuple(statistics.std.tolist())
