"""`sim` and a FedAvg that shares nothing with it but the windows come to the same scores, within the spread of seeds.

The spread is the standard deviation over seeds, the larger of both, measured once (4 seeds, MNIST 12; 2026-11-22).
Means over n seeds differ by more than 3 · spread · √(2/n) in one case of 370 where nothing is wrong; a broken training
step moves them by 20 to 60 points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from federation.records import Examples
from sim.data.federated_data import FederatedData
from sim.data.selection import scaled
from tests.learning import witness
from tests.learning.federations import SMALLEST_HART, loaded, scores, settings_of


@dataclass(frozen=True)
class Case:
    """One federation, its network in plain torch, and each score's standard deviation over seeds, in points."""

    options: Mapping[str, Any]
    build: Callable[[], nn.Module]
    spread: Mapping[str, float]
    clients: int | None = 8
    scale: float = 1.0
    seeds: Sequence[int] = (0, 1)


CASES = {
    "har_cnn": Case(
        {"data": "motionsense", "model": "har_cnn", "rounds": 4, "batch": 32},
        partial(witness.HarCnn, 6),
        {"personalization": 1.2, "global": 2.3},
    ),
    "hart": Case(
        {"data": "motionsense", "model": "hart", "rounds": 5, "batch": 32, "set": (*SMALLEST_HART, "model.dropout=0")},
        partial(witness.Hart, 6, width=48, blocks=2, head_width=128),
        {"personalization": 2.3, "global": 2.6},
        clients=6,
    ),
    "mnist": Case(
        {
            **{"data": "mnist", "model": "mnist_cnn", "partition": "dirichlet", "rounds": 6, "batch": 16},
            **{"optimizer": "sgd", "lr": 0.05, "momentum": 0.5},
            "set": ("partition.clients=20", "partition.alpha=10", "model.map_dropout=0", "model.dropout=0"),
        },
        witness.MnistCnn,
        {"personalization": 5.0, "global": 1.9},
        clients=None,
        scale=0.2,
        seeds=(0, 1, 2),
    ),
}


@pytest.mark.data
@pytest.mark.xdist_group("learning")  # which reads the same recordings
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.ci if name == "har_cnn" else pytest.mark.slow) for name in CASES]
)  # half a minute each
def test_simulation_and_plain_torch_come_to_the_same_scores(
    name: str, gaitway_data: Path, record_property: Callable[[str, object], None]
) -> None:
    case = CASES[name]
    found: dict[str, list[dict[str, float]]] = {"sim": [], "plain torch": []}
    for seed in case.seeds:
        settings = settings_of(**case.options, method="fedavg", seed=seed)
        data = scaled(loaded(settings, gaitway_data, case.clients), case.scale, 0)
        found["sim"].append(scores(settings, data))
        found["plain torch"].append(witnessed(case, data, seed))
    for score, spread in case.spread.items():
        means = {who: float(np.mean([each[score] for each in each_seed])) for who, each_seed in found.items()}
        allowed = 3 * spread * np.sqrt(2 / len(case.seeds))
        apart = abs(means["sim"] - means["plain torch"])
        line = ", ".join(f"{who} {mean:.1f}" for who, mean in means.items())
        record_property("score", f"{name}, the same in plain torch: {score} {line} (at most {allowed:.1f} apart)")
        assert apart <= allowed, (score, found)


def by_hand(examples: Examples, data: FederatedData) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x, with the bytes of images normalized here and not by the simulation, and y."""
    if data.moments is None:
        return tuple(examples)
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in data.moments)
    return (examples.x / 255 - mean) / std, examples.y


def witnessed(case: Case, data: FederatedData, seed: int) -> dict[str, float]:
    settings = settings_of(**case.options)
    training = settings.training
    make = {
        "adam": partial(torch.optim.Adam, lr=training.lr),
        "sgd": partial(torch.optim.SGD, lr=training.lr, momentum=training.momentum),
    }[training.optimizer]
    return witness.fedavg(
        case.build,
        {name: by_hand(client.train, data) for name, client in data.clients.items()},
        {name: by_hand(client.test, data) for name, client in data.clients.items()},
        rounds=settings.rounds.rounds,
        optimizer=make,
        batch=training.batch_size,
        seed=seed,
    )
