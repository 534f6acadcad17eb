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


_SMALL_HART = ("model.blocks=2", "model.feature_dim=64", "model.mlp=128", "model.head_width=256")
_SMALL_DECODER = ("task.decoder_kernels=[3,7]", "task.decoder_mlp=128")
# each device by its own statistics: those of one data set's federation would not be another's
_MASKED = {
    "normalization": "client",
    "task": "masked_reconstruction",
    "method": "fedavg",
    "model": "hart",
    "set": (*_SMALL_HART, *_SMALL_DECODER),
}
_FEW_LABELS = {"normalization": "client", "method": "fedavg", "model": "hart", "lr": 1e-3, "set": _SMALL_HART}
_BY_SMALL = {**_BY_METHOD, "fedali": {"model": "hart_alp", "set": ["model.prototypes=[64,32]"]}}
_SYNTHETIC = ("data.subjects=2", "data.phones=2", "data.places=1", "data.minutes=4", *_SMALL_HART)


def _masked(about: str, clients: int, needs: str, **options: Any) -> Preset:
    """Federated pretraining without labels, of a HART that two cores train in minutes."""
    chosen = {**_MASKED, **options}
    return Preset(paper=SMALL_DATA, about=about, clients=clients, needs=needs, options=chosen, by_method=_BY_SMALL)


def _few_labels(about: str, clients: int, needs: str, pretrained_by: str, **options: Any) -> Preset:
    """A federation of that network with few labels, which starts from the pretrained one."""
    chosen = {**_FEW_LABELS, **options}
    return Preset(
        paper=SMALL_DATA, about=about, clients=clients, needs=needs, options=chosen, by_method=_BY_SMALL,
        pretrained_by=pretrained_by,
    )  # fmt: skip


PRESETS = {
    "synthetic-masked": _masked(
        "generated recordings without labels, a small HART: seconds",
        4,
        "nothing",
        data="synthetic",
        rounds=3,
        lr=1e-3,
        set=(*_SYNTHETIC, *_SMALL_DECODER),
    ),
    "synthetic-few-labels": _few_labels(
        "then half of the clients have 5 labelled windows a class",
        4,
        "nothing, and --init",
        "synthetic-masked",
        data="synthetic",
        rounds=3,
        labelled_per_class=5,
        labelled_clients=0.5,
        set=_SYNTHETIC,
    ),
    "ucihar-spsw-masked": _masked(
        "UCI HAR and SP-SW-HAR without labels, a small HART",
        76,
        "ucihar and spsw",
        data="ucihar+spsw",
        rounds=100,
        epochs=2,
        lr=1e-3,
        clients_per_round=10,
    ),
    "motionsense-few-labels": _few_labels(
        "MotionSense, 5 labelled windows a class, pretrained by that federation",
        24,
        "motionsense, and --init",
        "ucihar-spsw-masked",
        data="motionsense",
        rounds=30,
        epochs=2,
        labelled_per_class=5,
    ),
    "motionsense-half-labelled": _few_labels(
        "the same, but half of the users have 10 labelled windows a class and the others none",
        24,
        "motionsense, and --init",
        "ucihar-spsw-masked",
        data="motionsense",
        rounds=30,
        epochs=2,
        labelled_per_class=10,
        labelled_clients=0.5,
    ),
    "synthetic-smoke": Preset(
        paper=SMALL_DATA,
        about="generated recordings, the CNN with ALP: seconds",
        clients=4,
        needs="nothing",
        options={
            "data": "synthetic",
            "model": "har_cnn_alp",
            "method": "fedali",
            "rounds": 3,
            "lr": 1e-3,
            "set": ["data.subjects=2", "data.phones=2", "data.places=1", "data.minutes=4"],
        },
    ),
    **{f"{name}-cnn": _recordings(name, "har_cnn", _SHORT) for name in _SETS},
    **{f"{name}-hart": _recordings(name, "hart", _LONG) for name in _SETS},
    "ucihar-hart-pretrained": replace(
        _recordings("ucihar", "hart", _LONG),
        about="UCI HAR, by user; pretrained on the other two (masked autoencoder, no labels)",
        needs="ucihar, and --init",
        pretraining="motionsense+spsw",
    ),
}
