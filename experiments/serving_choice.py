"""Which model should a device serve? Federations whose every client chooses as a device does, scored on later windows.

    python experiments/serving_choice.py collect --data-root ../shared/data --out runs/serving-choice
    python experiments/serving_choice.py table runs/serving-choice

`collect` trains each federation and keeps, for each client, what its candidates answer to windows that they were not
trained on; it resumes. `table` lets each rule choose by some of these answers and scores the choice on later ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from federation.methods import method_from_json
from federation.methods.fedavg import FedAvg
from federation.records import Client, Examples
from federation.training.prediction import predict
from federation.tree import map_tree
from har_pipeline import (
    ChannelStatistics,
    ClientWindows,
    PipelineSettings,
    dataset_settings,
    normalize_clients,
    prepare,
    time_folds,
)
from har_pipeline.splits import Split, overlaps, split_client
from sim.cli.options import describe
from sim.data.federated_data import ClientData, FederatedData
from sim.engines import ClientJob
from sim.presets import with_defaults
from sim.run import build_simulation
from sim.simulation import Simulation

SETS = ("motionsense", "ucihar", "spsw")
METHODS = {
    "fedavg": {"method": "fedavg", "model": "har_cnn", "rounds": 10},
    "fedali": {"method": "fedali", "model": "har_cnn_alp", "rounds": 10},
    "analytic": {"method": "analytic", "model": "har_features", "rounds": 2},
}
SEEDS = (0, 1, 2)
HELD_OUT_SHARE = 0.5
"""Of each class, the last in time: the first of them are held out to choose by, the rest are the later windows."""
FOLDS = 3
CANDIDATES = ("shared", "personal", "midway")


class Cell(NamedTuple):
    """One federation: a data set, whether its later windows are of other sessions, a method, and a seed."""

    data: str
    days: bool
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.data}{'-days' if self.days else ''}-{self.method}-{self.seed}"


def cells() -> Iterator[Cell]:
    """Yield every federation; only SP-SW-HAR has several sessions of each activity for every client."""
    for seed in SEEDS:
        for method in METHODS:
            for data, days in (*((data, False) for data in SETS), ("spsw", True)):
                yield Cell(data, days, method, seed)


def later_split(windows: ClientWindows, settings: PipelineSettings, days: bool) -> Split:
    """Split off the last half of each class or, with `days`, the last half of the sessions."""
    if not days:
        return split_client(windows, "temporal", test_share=HELD_OUT_SHARE, settings=settings)
    sessions = np.unique(windows.session)
    test = np.isin(windows.session, sessions[len(sessions) // 2 :])
    train = ~test & ~overlaps(windows.start_s, windows.start_s[test], settings.window_s)
    return Split(np.flatnonzero(train), np.flatnonzero(test), leaks=False)


def collect(cell: Cell, root: Path, cache: Path) -> dict[str, np.ndarray]:
    """Train a federation, and return the arrays that `table` reads, by `client/name`."""
    options = {**METHODS[cell.method], "data": cell.data, "seed": cell.seed, "threads": 1, "validation_share": 0.0}
    experiment = describe(with_defaults(None, options), None, None)
    pipeline = PipelineSettings.from_json({**dataset_settings(cell.data).to_json(), **experiment.data.pipeline})
    dataset = prepare(cell.data, root, pipeline, cache_dir=cache)
    splits = {name: later_split(windows, pipeline, cell.days) for name, windows in dataset.clients.items()}
    usable = {
        name: each for name, each in dataset.clients.items() if len(splits[name].train) and len(splits[name].test)
    }
    normalized, statistics = _normalized(usable, splits, experiment.data.normalization)
    clients = {
        name: ClientData(_examples(each, splits[name].train), _examples(each, splits[name].test))
        for name, each in normalized.items()
    }
    data = FederatedData(dataset.labels, clients, {name: statistics[name] for name in clients}, split_leaks=False)
    simulation = build_simulation(experiment.model_copy(update={"eval_every": 10**6}), data)
    for _ in simulation.run_rounds():
        pass
    found: dict[str, np.ndarray] = {"labels": np.array(dataset.labels)}
    shared, trained = simulation.server_model(), simulation.scored_clients()
    for name, client in clients.items():
        rows, windows = splits[name].test, normalized[name]
        for candidate, model in candidates(simulation, shared, trained[name]).items():
            found[f"{name}/{candidate}"] = answers(simulation, model, client.test.x)
        found[f"{name}/y"], found[f"{name}/start_s"] = windows.y[rows], windows.start_s[rows]
        found[f"{name}/session"] = windows.session[rows]
        found[f"{name}/trained"] = np.bincount(windows.y[splits[name].train], minlength=len(dataset.labels))
    found |= validated(cell, simulation, shared, normalized, splits, pipeline.window_s)
    return found


def validated(
    cell: Cell,
    simulation: Simulation,
    shared: Client,
    windows: Mapping[str, ClientWindows],
    splits: Mapping[str, Split],
    window_s: float,
) -> dict[str, np.ndarray]:
    """Answer each client's training windows by models trained without their fold: sessions with `days`, else stretches."""
    found: dict[str, np.ndarray] = {}
    for name in windows:
        mine = windows[name].select(splits[name].train)
        broadcast = simulation.setup.method.broadcast(simulation.state, name)
        out = {candidate: np.full(len(mine), -1) for candidate in CANDIDATES}
        for fold in folds_of(mine, cell.days, window_s):
            network = simulation.network_of[name]
            job = ClientJob(name, network.setup, network.initial, broadcast, _examples(mine, fold.train))
            ((_, result),) = simulation.engine.run([job], simulation.round_number + 1)
            x = torch.from_numpy(mine.x[fold.test])
            trained = simulation.setup.method.refresh(result.client, broadcast)
            for candidate, model in candidates(simulation, shared, trained).items():
                out[candidate][fold.test] = answers(simulation, model, x)
        for candidate, each in out.items():
            found[f"{name}/validated_{candidate}"] = each
        found[f"{name}/train_y"], found[f"{name}/train_session"] = mine.y, mine.session
        found[f"{name}/train_start_s"] = mine.start_s
    return found


def folds_of(windows: ClientWindows, days: bool, window_s: float) -> list[Split]:
    """Split training windows by session into three folds, or by time within each class."""
    if not days:
        return time_folds(windows, FOLDS, window_s)
    sessions = np.unique(windows.session)
    fold = np.searchsorted(sessions, windows.session) * FOLDS // max(FOLDS, len(sessions))
    parts = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(FOLDS)]
    return [Split(train, test, leaks=False) for train, test in parts if len(test) and len(train)]


def candidates(simulation: Simulation, shared: Client, client: Client) -> dict[str, Client]:
    """Return the networks among which a device chooses, by name."""
    heads = simulation.setup.method.serving_models(client)
    own = heads["personalized"]
    shared = heads.get("shared", simulation.setup.method.serving_model(shared))
    return {"shared": shared, "personal": own, "midway": midway(shared, own)}


def midway(one: Client, other: Client) -> Client:
    """Return the network whose weights lie midway between two."""
    return Client(
        *(
            {key: (a[key] + other[i][key]) / 2 if a[key].is_floating_point() else a[key] for key in a}
            for i, a in enumerate(one[:2])
        ),
        {},
    )


def answers(simulation: Simulation, model: Client, x: torch.Tensor) -> np.ndarray:
    """Return the class of each window (n,)."""
    return predict(replace(simulation.setup, method=FedAvg()), model, x, 256)


def _normalized(
    clients: Mapping[str, ClientWindows], splits: Mapping[str, Split], kind: str
) -> tuple[Mapping[str, ClientWindows], Mapping[str, ChannelStatistics]]:
    if kind == "none":
        return clients, dict.fromkeys(clients, ChannelStatistics(0, np.zeros(6), np.zeros(6)))
    return normalize_clients(clients, splits, kind, training_clients=list(clients))


def _examples(windows: ClientWindows, rows: np.ndarray) -> Examples:
    return Examples(torch.from_numpy(windows.x[rows]), torch.from_numpy(windows.y[rows]))


def main() -> None:
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for cell in cells():
        path = out / f"{cell.name}.npz"
        if path.exists():
            continue
        np.savez_compressed(path.with_suffix(".part.npz"), **collect(cell, root, Path(".cache/windows")))
        path.with_suffix(".part.npz").rename(path)
        print(cell.name, flush=True)


if __name__ == "__main__":
    main()
