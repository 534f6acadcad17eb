"""The demo's devices, the recordings that they replay, and the plans of its two federations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import har_pipeline
import models
from processes import DemoError

Plan = dict[str, Any]  # as the server's REST API takes it
SUMMABLE = {"fedali": {"clustering": "one_step"}}  # options with which a method's server half is a sum

# Sized for two cores and a few hundred windows for each device, which a wide network would overfit; the presets of
# `python -m sim` have the papers' sizes.
MODELS: dict[str, dict[str, Any]] = {
    "har_cnn_alp": {"channels": [32, 48], "feature_dim": 96, "hidden": 64, "prototypes": [32], "dropout": 0.6},
    "har_cnn": {"channels": [32, 48], "feature_dim": 96, "hidden": 64, "dropout": 0.6},
    "hart_alp": {"prototypes": [64, 64, 32, 32, 16, 16]},
}

SYNTHETIC_PHONES = ("phone100", "phone200")

# Real recordings, in the order of preference, and their clients in the data set's own order: the first ones take part.
REAL: dict[str, tuple[str, ...]] = {
    "motionsense": tuple(f"s{subject:02d}" for subject in range(1, 25)),
    "spsw": tuple(f"s{subject:02d}_{worn}" for subject in range(1, 24) for worn in ("sp", "sw")),
}
VERSION_INTERVAL_S = 15.0  # between versions of the exact sums: a person watches


class DatasetDefaults(NamedTuple):
    """What suits a data set: epochs per round, the plan's normalization, and the macro-F1 in percent to fail under."""

    epochs: int
    normalization: str
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
    """One data set, and the clients of it that the devices replay."""

    dataset: str
    root: Path | None
    options: dict[str, Any]
    clients: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the activities."""
        return har_pipeline.dataset_labels(self.dataset, self.options)

    def __str__(self) -> str:
        """Return one line for a person."""
        origin = f"recordings in {self.root}" if self.root else "generated recordings"
        return f"{self.dataset} ({origin}), {len(self.labels)} activities, devices {', '.join(self.clients)}"


def choose(data: Path | None, devices: int) -> Scenario:
    """Return the first real data set below `data`, or else raise a DemoError; generated recordings if it is None."""
    if data is None:
        subjects = -(-devices // len(SYNTHETIC_PHONES))
        names = [f"s{subject:02d}_{phone}-waist" for subject in range(subjects) for phone in SYNTHETIC_PHONES]
        options = {"subjects": subjects, "phones": SYNTHETIC_PHONES, "places": ["waist"], "minutes": 6.0}
        return Scenario("synthetic", None, options, tuple(names[:devices]))
    for dataset, clients in REAL.items():
        if _has_recordings(dataset, data, clients[0]):
            if devices > len(clients):
                raise DemoError(f"{dataset} has {len(clients)} clients; --devices {devices} is too many")
            return Scenario(dataset, data.resolve(), {}, clients[:devices])
    raise DemoError(f"none of {', '.join(REAL)} was found below {data}; see the README's table of data sets")


def _has_recordings(dataset: str, data: Path, client: str) -> bool:
    try:
        return next(har_pipeline.recordings(dataset, data, clients=[client]), None) is not None
    except har_pipeline.SourceError:
        return False


def plan_of_rounds(scenario: Scenario, model: str, method: str, rounds: int, seed: int) -> Plan:
    """Describe a federation that trains a network in rounds."""
    epochs, normalization, _ = DATASET_DEFAULTS[scenario.dataset]
    training = {"epochs": epochs, "batch_size": 32, "lr": 1e-3, "seed": seed}
    plan = _plan(scenario, model, method, training, normalization)
    return {**plan, "rounds": {"rounds": rounds, "minimum_clients": len(scenario.clients)}}


def plan_of_sums(scenario: Scenario) -> Plan:
    """Describe a federation that adds up exact sums of features, without rounds; phones can join it."""
    plan = _plan(scenario, "har_features", "analytic", {}, "none")
    return {**plan, "publication": {"interval_s": VERSION_INTERVAL_S}}


def secured(plan: Plan, devices: int) -> Plan:
    """Return the plan with secure sums of all devices, and without the rules that judge single updates."""
    unjudged = {"max_weight_ratio": None, "norm_factor": None, "minimum_clients": devices}
    method = {**plan["method"], **SUMMABLE.get(plan["method"]["name"], {})}
    secure = {"mode": "masked", "min_devices": devices}
    return {**plan, "rounds": {**plan.get("rounds", {}), **unjudged}, "method": method, "secure": secure}


def _plan(scenario: Scenario, model: str, method: str, training: dict[str, Any], normalization: str) -> Plan:
    classes, options = len(scenario.labels), MODELS.get(model, {})
    width = models.build(model, classes=classes, **options).feature_dim
    return {
        "labels": scenario.labels,
        "model": {"name": model, "options": options},
        "method": {"name": method},
        "training": {"classes": classes, "feature_dim": width, **training},
        "data": {"normalization": normalization},
    }
