"""What the demo's devices are, what they replay, and the plan that they follow."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import har_pipeline
import models
from federation import methods
from federation.method import SumMethod
from federation.plan import DataSpec, ModelSpec, Plan, RoundSettings, TrainingConfig
from processes import DemoError

FEDERATION = "demo"

# Sized for two cores and a few hundred windows a device, which a wide network learns by heart; the presets of
# `python -m sim` have the papers' sizes.
MODELS: dict[str, dict[str, Any]] = {
    "har_cnn_alp": {"channels": [32, 48], "feature_dim": 96, "hidden": 64, "prototypes": [32], "dropout": 0.6},
    "har_cnn": {"channels": [32, 48], "feature_dim": 96, "hidden": 64, "dropout": 0.6},
    "hart_alp": {"prototypes": [64, 64, 32, 32, 16, 16]},
}

METHODS = tuple(
    name for name, method in methods.METHODS.items() if not (method.traits.pools_data or issubclass(method, SumMethod))
)
"""Those with rounds that end; phones and boards are in a federation without."""

SYNTHETIC_PHONES = ("phone100", "phone200")

# Real recordings, in the order of preference, and their clients in the data set's own order: the first ones take part.
REAL: dict[str, tuple[str, ...]] = {
    "motionsense": tuple(f"s{subject:02d}" for subject in range(1, 25)),
    "spsw": tuple(f"s{subject:02d}_{worn}" for subject in range(1, 24) for worn in ("sp", "sw")),
}


class DatasetDefaults(NamedTuple):
    """What suits a data set: epochs a round, the plan's normalization, and the macro-F1 in percent to fail under."""

    epochs: int
    normalization: Literal["client", "none"]
    min_f1: float


# With several seeds, five rounds give the worst device 88 to 96, 40 to 52 (it has 80 windows, and classes with one or
# two held out) and 98; convolutions that train on scrambled gradients 32 to 67, 20 to 27 and 72 to 87. More epochs
# would hide such a fault where the data are few or easy. In MotionSense all carry the same phone in the same pocket, so
# that in m/s² and rad/s a shared model sees the same on each.
DATASET_DEFAULTS = {
    "motionsense": DatasetDefaults(epochs=6, normalization="none", min_f1=80.0),
    "spsw": DatasetDefaults(epochs=16, normalization="client", min_f1=35.0),
    "synthetic": DatasetDefaults(epochs=2, normalization="client", min_f1=90.0),
}


@dataclass(frozen=True)
class Scenario:
    """One data set and the clients of it that the devices replay."""

    dataset: str
    root: Path | None
    options: dict[str, Any]
    clients: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the activities."""
        return har_pipeline.dataset_labels(self.dataset, self.options)

    @property
    def suited(self) -> DatasetDefaults:
        """The settings for this data set."""
        return DATASET_DEFAULTS[self.dataset]

    @property
    def about(self) -> str:
        """One line for a person."""
        origin = f"recordings in {self.root}" if self.root else "generated recordings"
        return f"{self.dataset} ({origin}), {len(self.labels)} activities, devices {', '.join(self.clients)}"


def choose(data: Path | None, devices: int, minutes: float) -> Scenario:
    """Take the first real data set that is below `data`, or generated recordings where no folder is given.

    Raises:
        DemoError: if the folder holds none of the data sets, or too few clients.
    """
    if data is None:
        subjects = -(-devices // len(SYNTHETIC_PHONES))
        options = {"subjects": subjects, "phones": SYNTHETIC_PHONES, "places": ["waist"], "minutes": minutes}
        every = tuple(f"s{subject:02d}_{phone}-waist" for subject in range(subjects) for phone in SYNTHETIC_PHONES)
        return Scenario("synthetic", None, options, every[:devices])
    for dataset, clients in REAL.items():
        if _found(dataset, data, clients[0]):
            if devices > len(clients):
                raise DemoError(f"{dataset} has {len(clients)} clients; --devices {devices} are too many")
            return Scenario(dataset, data.resolve(), {}, clients[:devices])
    raise DemoError(f"none of {', '.join(REAL)} was found below {data}; see the README's table of data sets")


def _found(dataset: str, data: Path, client: str) -> bool:
    try:
        return next(har_pipeline.recordings(dataset, data, clients=[client]), None) is not None
    except har_pipeline.SourceError:
        return False


def make_plan(scenario: Scenario, *, model: str, method: str, rounds: int, epochs: int, lr: float, seed: int) -> Plan:
    """Write down what the federation agrees on."""
    options = MODELS[model]
    classes = len(scenario.labels)
    width = models.build(model, classes=classes, **options).feature_dim
    training = TrainingConfig(classes=classes, feature_dim=width, epochs=epochs, batch_size=32, lr=lr, seed=seed)
    return Plan(
        labels=scenario.labels,
        model=ModelSpec(name=model, options=options),
        method={"name": method},
        training=training,
        rounds=RoundSettings(rounds=rounds, minimum_clients=len(scenario.clients)),
        data=DataSpec(normalization=scenario.suited.normalization),
    )


def write_agent_config(
    folder: Path,
    scenario: Scenario,
    device: str,
    http_port: int,
    mqtt_port: int,
    page: str | None = None,
    federation: str = FEDERATION,
) -> Path:
    """Write a device's agent.toml, with its own page at the address `page`; its data lie beside it."""
    settings: dict[str, dict[str, Any]] = {
        "agent": {"device": device, "federation": federation, "data_dir": "."} | ({"page": page} if page else {}),
        "server": {"url": f"http://127.0.0.1:{http_port}", "key_file": "../server.key"},
        "broker": {"host": "127.0.0.1", "port": mqtt_port},
        "sensors": {"dataset": scenario.dataset, "options": scenario.options}
        | ({"root": str(scenario.root)} if scenario.root else {}),
        "conditions": {"ignore": ["all"]},  # several devices share this machine, which is busy with them
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "agent.toml"
    path.write_text("\n".join(_section(name, fields) for name, fields in settings.items()))
    return path


def _section(name: str, fields: dict[str, Any]) -> str:
    return "\n".join([f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in fields.items()), ""])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)  # strings, numbers and booleans are written alike in both
