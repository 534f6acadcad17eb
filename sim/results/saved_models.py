"""The models that a run leaves for `python -m export`: the server's, and each client's of the best round."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path
from typing import cast

import models
from federation.records import Client, Tensors
from federation.training.forward import initial_model
from gaitway.tasks import DEFAULT_TASK
from models.checkpoint import CheckpointInfo, save_checkpoint
from models.mae import encoder_state, is_autoencoder_state
from sim.data.federated_data import FederatedData
from sim.data.sources import get_source
from sim.experiment.networks import Architecture
from sim.experiment.settings import Experiment
from sim.results.run_directory import model_file, round_model_file
from sim.rounds.simulation import Simulation

SERVER = "global"


def save_models(simulation: Simulation, settings: Experiment, out: Path) -> None:
    """Write `models/{client}.safetensors`, each with its own network, and `models/global.safetensors` if there is one.

    Clients' models are those of the best round, or of the last one where no round has a score. A client that serves
    with a part of what it keeps (Ditto's personal model) leaves that part. Of a masked autoencoder the encoder is left,
    as the model that the plan names, with a fresh head: for `--init`.
    """
    if simulation.setup.method.has_global_model:
        _save(model_file(out, SERVER), SERVER, simulation.server_model(), settings, simulation)
    for name, client in (simulation.best_round.best.clients or simulation.clients).items():
        _save(model_file(out, name), name, client, settings, simulation)


def save_round_model(simulation: Simulation, settings: Experiment, out: Path) -> None:
    """Write the server's model as it is after this round, if there is one."""
    if simulation.setup.method.has_global_model:
        path = round_model_file(out, simulation.round_number)
        _save(path, SERVER, simulation.server_model(), settings, simulation)


def _save(path: Path, name: str, client: Client, settings: Experiment, simulation: Simulation) -> None:
    network = simulation.networks[0] if name == SERVER else simulation.network_of[name]
    taken = get_source(settings.dataset).input_spec(settings.dataset_options, settings.data.pipeline)
    served = network.setup.method.serving_model(client)
    state = {**served.params, **served.buffers}
    pretrained = is_autoencoder_state(state)
    info = CheckpointInfo(
        model=network.model.name,
        options=network.model.options,
        labels=simulation.data.labels,
        input=taken.normalized_by(*_normalization(name, simulation.data)),
        method=settings.method["name"],
        round=(simulation.best_round.best.round if name != SERVER else 0) or simulation.round_number,
        federation=f"sim-{settings.dataset}",
        task=settings.task if network.setup.task.is_served else {"name": DEFAULT_TASK.name},
        fresh_head=pretrained,
        normalization=settings.data.normalization if taken.kind == "window" else "",
    )
    if pretrained:
        state = _encoder(state, network, settings)
    save_checkpoint(path, state, info)


def _encoder(state: Tensors, network: Architecture, settings: Experiment) -> Tensors:
    spec, training = network.model, settings.training

    def fresh() -> models.Model:
        return models.build(spec.name, classes=training.classes, **spec.options)

    return encoder_state(state, cast(models.Model, initial_model(fresh, training.seed)))


def _normalization(name: str, data: FederatedData) -> tuple[tuple[float, ...], tuple[float, ...]]:
    # under `client` normalization the server's model has no statistics of its own: it gets the sum of all clients'
    statistics = data.statistics.get(name) or reduce(add, data.statistics.values())
    return tuple(statistics.mean.tolist()), tuple(statistics.std.tolist())
