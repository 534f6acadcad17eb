"""What a head of exact sums reaches for new people, by the features below it: five splits of three data sets.

    python experiments/features.py --data-root ../shared/data

Training windows of members become sums, as `analytic` makes them, and heads are solved of everybody's sums. Left
out are the people that `sim run --holdout leave-subjects-out:K --seed S` leaves out, and scored are their test windows:
mean macro-F1 over clients. It solves in numpy what `sim run` solves in torch, hundreds of runs in a few minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from federation.aggregation.ridge_numpy import Damping, FixedSums, RidgeHead, solve, solve_mean, sums_of, travelling
from gaitway.tasks.classification import macro_f1
from models import build
from models.har_features import HarFeatures
from sim.cli.options import describe
from sim.data.federated_data import ClientData, FederatedData
from sim.presets import with_defaults
from sim.run import load_data, resolve

HELD_OUT = {"motionsense": 8, "ucihar": 10, "spsw": 14}
NETWORKS = {"cosines": {"cosines": 600}, "minirocket": {"features": 600}, "minirocket 2000": {"features": 2000}}
SEEDS = range(5)
SHARE, CLIP, BATCH = 0.33, 4.0, 64
RIDGES = (0.003, 0.01, 0.03, 0.1)
CHANGES = {
    "as recorded": np.ones(6, np.float32),
    "upside down": np.array([-1, -1, 1, -1, -1, 1], np.float32),
    "no gyroscope": np.array([1, 1, 1, 0, 0, 0], np.float32),
}


class Person(NamedTuple):
    """A client's own sums, and the features (n, D) of its test windows in each condition, with their classes (n,)."""

    sums: FixedSums
    test: Mapping[str, np.ndarray]
    y: np.ndarray


def loaded(name: str, seed: int, root: Path, *, holdout: bool = True) -> FederatedData:
    """Load a data set as `sim run` does."""
    left_out = {"holdout": f"leave-subjects-out:{HELD_OUT[name]}"} if holdout else {}
    options = {"method": "analytic", "model": "har_features", "rounds": 1, "data": name, "seed": seed, **left_out}
    return load_data(resolve(describe(with_defaults(None, options), None, None)), root)


@torch.no_grad()
def features(module: HarFeatures, x: torch.Tensor) -> np.ndarray:
    """Return the features (n, D) of windows."""
    parts = [module(part).features.numpy() for part in x.split(BATCH)]
    return np.concatenate(parts) if parts else np.zeros((0, module.feature_dim), np.float32)


def person(module: HarFeatures, client: ClientData, classes: int) -> Person:
    """Make what is needed of one client."""
    train = sums_of(features(module, client.train.x), client.train.y.numpy(), classes, CLIP)
    test = {way: features(module, client.test.x * torch.from_numpy(factor)) for way, factor in CHANGES.items()}
    return Person(travelling(train), test, client.test.y.numpy())


def heads(module: HarFeatures, shared: FixedSums, ridge: float) -> dict[str, RidgeHead]:
    """Solve the head that serves in each condition."""
    damping, free = Damping(ridge), module.orientation_free_columns
    lacking = shared.restricted(module.acceleration_columns) if module.acceleration_columns else shared
    return {
        "as recorded": solve_mean(shared, None, 0, damping, free, SHARE),
        "upside down": solve(shared, None, 0, damping, free),
        "no gyroscope": solve_mean(lacking, None, 0, damping, free, SHARE),
    }


def scores(
    module: HarFeatures, people: Mapping[str, Person], splits: Sequence[Sequence[str]], ridge: float
) -> Iterator[dict[str, float]]:
    """Yield, for each split, the mean macro-F1 of new people in each condition."""
    for new in splits:
        members = [people[name].sums for name in people if name not in new]
        total = FixedSums(*(sum(part.astype(np.int64) for part in parts) for parts in zip(*members, strict=True)))
        found = heads(module, total, ridge)
        yield {
            way: 100 * float(np.mean([macro_f1(people[n].y, head.classes(people[n].test[way])) for n in new]))
            for way, head in found.items()
        }


def main() -> None:
    """Print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-root", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS, help="which to compare")
    given = parser.parse_args()
    for name in HELD_OUT:
        splits = [sorted(loaded(name, seed, given.data_root).new_clients) for seed in SEEDS]
        data = loaded(name, 0, given.data_root, holdout=False)
        print(f"| {name} | λ | {' | '.join(CHANGES)} |", flush=True)
        for network in given.networks:
            module = build("har_features", classes=len(data.labels), **NETWORKS[network])
            assert isinstance(module, HarFeatures)
            people = {client: person(module, part, len(data.labels)) for client, part in data.clients.items()}
            for ridge in RIDGES:
                found = list(scores(module, people, splits, ridge))
                cells = [[split[way] for split in found] for way in CHANGES]
                shown = " | ".join(f"{np.mean(cell):.1f} ({min(cell):.1f} to {max(cell):.1f})" for cell in cells)
                print(f"| {network} | {ridge} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
