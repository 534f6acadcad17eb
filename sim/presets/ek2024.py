"""S. Ek, K. Wang, F. Portet, P. Lalanda, J. Cao: FedAli, 2024, arXiv 2411.10595: tables 1 to 6 on HAR and CIFAR.

HART (HAR) or ViT tiny (CIFAR), with ALP layers for FedAli; Adam 1e-4, batches of 64, 5 local epochs, all clients, 80/20
splits at random, which leak between overlapping windows. Local and centralized train for 200 epochs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sim.presets.preset import Options, Preset

PAPER = "Ek et al. 2024"
_TRAINING = {"epochs": 5, "batch": 64, "lr": 1e-4, "optimizer": "adam", "split": "random80", "method": "fedali"}
_EPOCHS_200 = {"rounds": 40}
_BETAS = (0.1, 0.2, 0.3, 0.4, 0.5)
# table 3; with neither entry the layer is the paper's
_ABLATIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "no-glu": {"glu": False},
    "no-global": {"prototypes": "local"},
    "no-local": {"prototypes": "global"},
    "cosine": {"match": "cosine"},
    "euclidean": {"match": "euclidean"},
    **{f"beta-{beta}": {"beta": beta} for beta in _BETAS},
}


def _by_method(network: str) -> dict[str, Options]:
    return {
        "fedali": {"model": f"{network}_alp"},
        "fedprox": {"set": ["mu=0.01"]},
        "local": _EPOCHS_200,
        "centralized": _EPOCHS_200,
    }


def _har(data: str, clients: int, about: str, needs: str, **options: Any) -> Preset:
    chosen = {**_TRAINING, "rounds": 600, "data": data, "model": "hart", **options}
    return Preset(paper=PAPER, about=about, clients=clients, needs=needs, options=chosen, by_method=_by_method("hart"))


def _sampled(percent: int) -> Preset:
    a_round = round(141 * percent / 100)
    about = f"table 4: {percent} % of the clients a round"
    return _har("combined", 141, about, "hhar and realworld", clients_per_round=a_round)


def _ablation(name: str, alp: dict[str, Any]) -> Preset:
    preset = _har("hhar", 36, f"ablation of the ALP layer: {name}, 200 rounds", "hhar", rounds=200)
    own = {"model": "hart_alp", "set": [f"model.alp={json.dumps(alp)}"] if alp else []}
    return replace(preset, by_method={**preset.by_method, "fedali": own})


def _cifar(classes: int, clients: int) -> Preset:
    return Preset(
        paper=PAPER,
        about=f"CIFAR-{classes}, Dirichlet 0.3 among {clients} clients, ViT tiny (with ALP for fedali)",
        clients=clients,
        needs=f"cifar{classes} (or --data cifar{classes}_jpg)",
        options={
            **_TRAINING,
            "data": f"cifar{classes}",
            "model": "vit_tiny",
            "rounds": 200,
            "partition": "dirichlet",
            "set": [f"partition.clients={clients}", "partition.alpha=0.3"],
        },
        by_method=_by_method("vit_tiny"),
    )


PRESETS = {
    "ek2024-hhar": _har("hhar", 36, "table 1, HHAR: 9 users × 4 phones", "hhar"),
    "ek2024-realworld": _har("realworld", 105, "table 1, RealWorld 2016: 15 subjects × 7 places", "realworld"),
    "ek2024-combined": _har("combined", 141, "table 1, both together", "hhar and realworld"),
    **{f"ek2024-combined-{percent}-percent": _sampled(percent) for percent in (10, 20, 50)},
    **{f"ek2024-hhar-{name}": _ablation(name, alp) for name, alp in _ABLATIONS.items()},
    **{f"ek2024-cifar{classes}-{k}": _cifar(classes, k) for classes in (10, 100) for k in (20, 50)},
}
