"""Small federations on generated recordings: two clients, a CNN of eight channels, two rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from federation.records import Examples
from har_pipeline import dataset_labels
from sim.cli.options import build_experiment, dataset_options
from sim.data.federated_data import ClientData, FederatedData
from sim.engines.fork_map import is_supported
from sim.experiment.settings import Experiment
from sim.presets import with_defaults
from sim.results.tracking import RunCallback
from sim.scores.records import RoundRecord

DATA = ["data.subjects=2", "data.phones=1", "data.places=1", "data.minutes=3"]
CNN = ["model.channels=[8,8]", "model.feature_dim=16", "model.hidden=8"]
ALP = [*CNN, "model.prototypes=[8]"]

needs_fork = pytest.mark.skipif(not is_supported(), reason="this system has no fork, or no files in memory")


class Reporter(RunCallback):
    """Calls a function with ("client", its name), ("round", its number) and ("client_store", (name, reason))."""

    def __init__(self, report: Callable[[str, Any], None]) -> None:
        self.report = report

    def on_client(self, client_id: str) -> None:
        self.report("client", client_id)

    def on_round(self, record: RoundRecord) -> None:
        self.report("round", record.round)

    def on_choice(self, what: str, name: str, reason: str) -> None:
        self.report(what, (name, reason))


def settings_for(method: str = "fedavg", **options: Any) -> Experiment:
    """Settings of a small run; scaffold, which only knows SGD, gets it."""
    more = options.pop("set", [])
    given = {
        "method": method,
        "model": "har_cnn_alp",
        "rounds": 2,
        "lr": 2e-3,
        "engine": "serial",
        "optimizer": "sgd" if method == "scaffold" else "adam",
        **options,
        "set": [
            *DATA,
            *_network(options.get("model", "har_cnn_alp")),
            *_wide_enough(method, options.get("model", "har_cnn_alp")),
            *more,
        ],
    }
    return build_experiment(with_defaults(None, given), dataset_labels("synthetic", dataset_options(DATA)), None)


def _network(model: str) -> list[str]:
    if model == "har_cnn_alp":
        return ALP
    return CNN if model.startswith("har_cnn") else []


def _wide_enough(method: str, model: str) -> list[str]:
    """A head of two layers is made linear by two hidden units a class."""
    return ["model.hidden=12"] if method in ("analytic", "pfedfda") and model != "har_features" else []


def in_double(data: FederatedData) -> FederatedData:
    """Return the same examples in float64."""
    return replace(data, clients={name: _double(client) for name, client in data.clients.items()})


def first(data: FederatedData, sizes: dict[str, int]) -> FederatedData:
    """Keep so many training examples of these clients, in the order given, and half of the test examples."""
    chosen = zip(sizes.items(), data.clients.values(), strict=False)
    clients = {
        name: ClientData(_cut(c.train, size), _cut(c.test, len(c.test.y) // 2), c.validation)
        for (name, size), c in chosen
    }
    return replace(data, clients=clients, statistics=dict.fromkeys(clients, next(iter(data.statistics.values()))))


def _double(client: ClientData) -> ClientData:
    parts = (client.train, client.test, client.validation)
    return ClientData(*(part and Examples(part.x.to(torch.float64), part.y) for part in parts))


def _cut(examples: Examples, size: int) -> Examples:
    # every few examples, so that all classes are there
    rows = torch.linspace(0, len(examples.y) - 1, size).long()
    return Examples(examples.x[rows], examples.y[rows])
