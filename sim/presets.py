"""Named starting points: the papers' settings, and sizes that a laptop finishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sim.errors import SettingsError


class Preset(NamedTuple):
    """Values for the options of `sim run`; an option on the command line wins."""

    about: str
    options: Mapping[str, Any]


_EK = {"epochs": 5, "batch": 64, "lr": 1e-4, "optimizer": "adam", "split": "random80"}

PRESETS: dict[str, Preset] = {
    "ek2024-hhar": Preset(
        "Ek et al. 2024, table 1, HHAR: 36 clients, HART with ALP, FedAli, 600 rounds (their 80/20 split leaks)",
        {**_EK, "data": "hhar", "model": "hart_alp", "method": "fedali", "rounds": 600},
    ),
    "ek2024-realworld": Preset(
        "Ek et al. 2024, table 1, RealWorld: 105 clients, HART with ALP, FedAli, 600 rounds",
        {**_EK, "data": "realworld", "model": "hart_alp", "method": "fedali", "rounds": 600},
    ),
    "motionsense-cnn": Preset(
        "MotionSense, 24 clients, CNN, FedAvg, 30 rounds of 2 epochs: minutes on two cores",
        {"data": "motionsense", "model": "cnn", "method": "fedavg", "rounds": 30, "epochs": 2, "lr": 1e-3},
    ),
    "spsw-cnn": Preset(
        "SP-SW-HAR, 46 clients (23 subjects × phone and watch), CNN, FedAvg, 30 rounds of 2 epochs",
        {"data": "spsw", "model": "cnn", "method": "fedavg", "rounds": 30, "epochs": 2, "lr": 1e-3},
    ),
    "synthetic-smoke": Preset(
        "Generated recordings, 4 clients, CNN with ALP, FedAli, 3 rounds: seconds, needs no data",
        {
            "data": "synthetic",
            "model": "cnn_alp",
            "method": "fedali",
            "rounds": 3,
            "lr": 1e-3,
            "set": ["data.subjects=2", "data.phones=2", "data.places=1", "data.minutes=4"],
        },
    ),
}

DEFAULTS: dict[str, Any] = {
    "data": "synthetic",
    "model": "cnn",
    "method": "fedavg",
    "rounds": 10,
    "epochs": 1,
    "batch": 64,
    "lr": 1e-3,
    "optimizer": "adam",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "seed": 0,
    "engine": "serial",
    "chunk": 8,
    "split": "temporal",
    "normalization": "federated",
    "eval_every": 1,
    "device": "cpu",
    "threads": 1,
    "clients_per_round": None,
    "sampling": "uniform",
    "stragglers": 0.0,
    "set": [],
}


def with_defaults(preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the given options over the preset's, and those over the defaults; `set` accumulates.

    Raises:
        SettingsError: for an unknown preset.
    """
    if preset is not None and preset not in PRESETS:
        raise SettingsError(f"unknown preset {preset!r}; known: {', '.join(PRESETS)}")
    base = dict(PRESETS[preset].options) if preset else {}
    chosen = {name: value for name, value in given.items() if value is not None}
    return {**DEFAULTS, **base, **chosen, "set": [*base.get("set", []), *given.get("set", [])]}
