"""Experiments on data that can be had: recordings in minutes with the CNN, in hours with HART."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from models.registry import with_alp
from sim.presets.preset import SMALL_DATA, Options, Preset

_SHORT = {"rounds": 30, "epochs": 2, "lr": 1e-3, "method": "fedavg"}
_LONG = {"rounds": 100, "epochs": 5, "lr": 1e-4, "method": "fedavg"}
_BY_METHOD: dict[str, Options] = {"fedprox": {"set": ["mu=0.01"]}}
_SETS = {
    "motionsense": (24, "MotionSense, by user"),
    "ucihar": (30, "UCI HAR, by user"),
    "spsw": (46, "SP-SW-HAR, by user and device (phone, watch)"),
    "union": (100, "MotionSense, UCI HAR and SP-SW-HAR with merged labels"),
}


def _recordings(name: str, network: str, training: dict[str, Any]) -> Preset:
    clients, about = _SETS[name]
    return Preset(
        paper=SMALL_DATA,
        about=f"{about}; {network}, {with_alp(network)} for fedali",
        clients=clients,
        needs="motionsense, ucihar and spsw" if name == "union" else name,
        options={**training, "data": name, "model": network},
        by_method={**_BY_METHOD, "fedali": {"model": with_alp(network)}},
    )


PRESETS = {
    "synthetic-smoke": Preset(
        paper=SMALL_DATA,
        about="generated recordings, the CNN with ALP: seconds",
        clients=4,
        needs="nothing",
        options={
            "data": "synthetic",
            "model": "cnn_alp",
            "method": "fedali",
            "rounds": 3,
            "lr": 1e-3,
            "set": ["data.subjects=2", "data.phones=2", "data.places=1", "data.minutes=4"],
        },
    ),
    **{f"{name}-cnn": _recordings(name, "cnn", _SHORT) for name in _SETS},
    **{f"{name}-hart": _recordings(name, "hart", _LONG) for name in _SETS},
    "ucihar-hart-pretrained": replace(
        _recordings("ucihar", "hart", _LONG),
        about="UCI HAR, by user; pretrained on the other two (masked autoencoder, no labels)",
        needs="ucihar, and --init",
        pretraining="motionsense+spsw",
    ),
}
