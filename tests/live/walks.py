"""The small federation of these tests: two phones of one person, as a simulation and as a live plan."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch

from federation.methods import METHODS
from federation.plan import DataSpec, ModelSpec, Plan, RoundSettings, TrainingConfig
from federation.protocol.messages import Precision
from federation.records.tree import flatten
from har_pipeline import dataset_labels
from sim.data.federated_data import FederatedData
from sim.experiment.settings import Experiment
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, load_data, resolve

DEVICES = ("s00_phone100-waist", "s00_phone200-waist")
ROUNDS = 2
FEATURES = 16
CNN = {"channels": [8, 8], "feature_dim": FEATURES, "hidden": 24}
HART = ModelSpec(name="hart", options={"feature_dim": FEATURES, "blocks": 1, "heads": 2, "mlp": 16, "head_width": 16})


def data_options(minutes: float) -> dict[str, Any]:
    """What the generator is told, at both ends."""
    return {"subjects": 1, "phones": ["phone100", "phone200"], "places": ["waist"], "minutes": minutes}


def experiment_for(
    method: str,
    *,
    minutes: float = 1.0,
    alternatives: tuple[ModelSpec, ...] = (),
    precision: Precision = "lossless",
    **options: str,
) -> Experiment:
    """Describe the simulation of a method with its options: a CNN, with ALP layers where it sends their prototypes."""
    needs_alp = METHODS[method].traits.requires_alp
    labels = dataset_labels("synthetic", data_options(minutes))
    return Experiment(
        labels=labels,
        dataset="synthetic",
        dataset_options=data_options(minutes),
        model=ModelSpec(name="har_cnn_alp", options={**CNN, "prototypes": [8]})
        if needs_alp
        else ModelSpec(name="har_cnn", options=CNN),
        alternatives=alternatives,
        method={"name": method, **options},
        training=TrainingConfig(
            classes=len(labels),
            feature_dim=FEATURES,
            epochs=2,
            batch_size=16,
            lr=1e-2,
            optimizer="sgd" if method == "scaffold" else "adam",
            seed=5,
        ),
        # one device has an example more than the other: its weight is capped, in both worlds alike
        rounds=RoundSettings(
            rounds=ROUNDS,
            minimum_clients=len(DEVICES),
            max_weight_ratio=1.0,
        ),
        precision=precision,
        engine="serial",
        validation_share=0.0,  # a device trains on all that it does not test on
    )


def plan_of(settings: Experiment) -> Plan:
    """Write down the same federation for a server."""
    return Plan(**{name: getattr(settings, name) for name in Plan.model_fields})


def simulated(settings: Experiment) -> Simulation:
    """Run the simulation to its end, one client after the other."""
    torch.set_num_threads(1)
    simulation = build_simulation(
        resolve(settings), _data(settings.model_dump_json(include={"dataset_options", "data"}))
    )
    assert tuple(simulation.data.clients) == DEVICES
    for _record in simulation.run_rounds():
        pass
    return simulation


@functools.cache
def _data(what: str) -> FederatedData:
    """Read the windows once for all methods; how they are trained on makes no difference to them."""
    found = json.loads(what)
    settings = experiment_for("fedavg", minutes=found["dataset_options"]["minutes"])
    return load_data(
        resolve(settings.model_copy(update={"data": DataSpec.model_validate(found["data"])})), None, None, None
    )


def assert_same(live: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    """Compare two trees bit for bit."""
    left, right = flatten(live), flatten(expected)
    assert left.keys() == right.keys(), what
    for name, value in right.items():
        assert torch.equal(left[name], value), f"{what}: {name}"


def agent_toml(
    folder: Path,
    device: str,
    url: str,
    mqtt: int,
    minutes: float,
    model: str = "",
    transport: str = "mqtt",
    ca: Path | None = None,
) -> Path:
    """Write a device's config file; with the file of an authority, the broker is spoken to by TLS."""
    tls = f'tls = true\nca_file = "{ca}"\n' if ca else ""
    options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in data_options(minutes).items())
    path = folder / f"{device}.toml"
    path.write_text(
        f'[agent]\ndevice = "{device}"\nfederation = "live"\ndata_dir = "{device}"\nmodel = "{model}"\n'
        f'[server]\nurl = "{url}"\ntransport = "{transport}"\n[broker]\nhost = "127.0.0.1"\nport = {mqtt}\n{tls}'
        f'[sensors]\ndataset = "synthetic"\noptions = {{ {options} }}\n'
    )
    return path
