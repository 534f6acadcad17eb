"""Small federations whose programs the tests export: a method, a network of a few thousand weights, one task."""

from __future__ import annotations

import functools
from typing import Any

import models
from export.program.exporter import Federation, export_program
from export.program.parity import after_one_round, generated_examples
from export.program.runtime import TrainingProgram
from federation.methods import METHODS, method_from_json
from federation.plan import TrainingConfig
from federation.tasks import TASKS
from federation.training.forward import initial_client, initial_model, network
from federation.training.local_round import Setup

NETWORKS: dict[str, dict[str, Any]] = {
    "dense": {"input_shape": [12], "hidden": [16, 8]},
    "dense, last layer": {"input_shape": [12], "hidden": [8, 16], "features_at": "last_layer"},
    "har_cnn": {"channels": [8, 8], "feature_dim": 16, "hidden": 8, "dropout": 0.3},
    "har_cnn_alp": {"channels": [8, 8], "feature_dim": 16, "hidden": 8, "dropout": 0.3, "prototypes": [5]},
    "hart": {"blocks": 1, "feature_dim": 16, "heads": 1, "mlp": 8, "head_width": 8},
    "hart_alp": {"blocks": 1, "feature_dim": 16, "heads": 1, "mlp": 8, "head_width": 8, "prototypes": [5]},
}
EXPORTABLE = [name for name, method in METHODS.items() if method().program_incompatibility is None]


def small_federation(
    method: str | dict[str, Any], network_name: str = "", *, task: str = "classification", **training: Any
) -> Federation:
    """Build a federation; its network is a dense one, or where the method needs ALP layers a CNN."""
    learnt = method_from_json({"name": method} if isinstance(method, str) else method)
    network_name = network_name or ("har_cnn_alp" if learnt.traits.requires_alp else "dense")
    classes = 1 if task == "regression" else 3
    optimizer = learnt.traits.optimizer or "adam"
    settings = {"epochs": 3, "batch_size": 4, "lr": 0.01, "optimizer": optimizer, **training}
    config = TrainingConfig(classes=classes, feature_dim=16, **settings)
    table_name, options = network_name.partition(",")[0], NETWORKS[network_name]
    module = initial_model(lambda: models.build(table_name, classes=classes, **options), 0)
    setup = Setup(learnt, config, network(module), TASKS[task](), rounds=4)
    initial = learnt.init_client_state(initial_client(module), config)
    broadcast = learnt.broadcast(learnt.server_init(initial.params, initial.buffers, config), "")
    spec = {"name": table_name, "options": options}
    found = Federation(setup, initial, broadcast, module.input_shape, spec)
    return after_one_round(found, generated_examples(found, 9, seed=1))


@functools.cache
def small_program(method: str, network_name: str = "", augmentation: str = "none") -> tuple[Federation, bytes]:
    """Return a federation and its program's bytes."""
    found = small_federation(method, network_name, augmentation=augmentation)
    return found, export_program(found)


def loaded(method: str, network_name: str = "") -> tuple[Federation, TrainingProgram]:
    """Return a federation and its program."""
    found, data = small_program(method, network_name)
    return found, TrainingProgram.load(data)
