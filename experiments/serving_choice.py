"""Which model should a device serve? Federations in which clients choose like devices, scored on later windows.

    python experiments/serving_choice.py collect --data-root ../shared/data --out runs/serving-choice
    python experiments/serving_choice.py table --out runs/serving-choice

`collect` trains each federation and keeps, for each client, what its candidates answer to windows that they were not
trained on; it resumes. `table` lets each rule choose by some of these answers and scores the choice on later ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from federation.aggregation.averaging import midway
from federation.method import SumMethod
from federation.methods.fedavg import FedAvg
from federation.records import Client, Examples
from federation.rounds.serving import Evidence, Prior, Rival, expected_gains, likeliest
from federation.training.prediction import predict
from gaitway.tasks.classification import confusion, scores_of
from har_pipeline import (
    ChannelStatistics,
    ClientWindows,
    PipelineSettings,
    dataset_settings,
    default_cache_dir,
    normalize_clients,
    prepare,
    session_folds,
)
from har_pipeline.splits import Split, overlaps, split_client
from sim.cli.options import describe
from sim.data.federated_data import ClientData, FederatedData
from sim.engines import ClientJob
from sim.presets import with_defaults
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, resolve

SETS = ("motionsense", "ucihar", "spsw")
METHODS = {
    "fedavg": {"method": "fedavg", "model": "har_cnn", "rounds": 10},
    "fedali": {"method": "fedali", "model": "har_cnn_alp", "rounds": 10},
    "analytic": {"method": "analytic", "model": "har_features", "rounds": 2},
}
NETWORKS = ("fedavg", "fedali")
SEEDS = (0, 1, 2)
HELD_OUT_SHARE = 0.5
"""Of each class, the last in time: the first of them are held out to choose by, the rest are the later windows."""
FOLDS = 3
CANDIDATES = ("shared", "personal", "midway")
ORDER = ("midway", "personal", "shared")
HELD_OUT, TARGETED = (5, 20, 60), (20, 60)


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
    """Yield every federation; only SP-SW-HAR has several sessions of each activity for every client.

    Sums don't depend on the seed: nothing is drawn.
    """
    for seed in SEEDS:
        for method in METHODS if seed == SEEDS[0] else NETWORKS:
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
        name: client for name, client in dataset.clients.items() if len(splits[name].train) and len(splits[name].test)
    }
    normalized, statistics = _normalized(usable, splits, experiment.data.normalization)
    clients = {
        name: ClientData(_examples(client, splits[name].train), _examples(client, splits[name].test))
        for name, client in normalized.items()
    }
    data = FederatedData(dataset.labels, clients, {name: statistics[name] for name in clients}, split_leaks=False)
    simulation = build_simulation(resolve(experiment.model_copy(update={"eval_every": 10**6})), data)
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
    if cell.days and cell.method != "analytic":  # as on a device
        found |= validated(simulation, shared, normalized, splits, pipeline.window_s)
    return found


def validated(
    simulation: Simulation,
    shared: Client,
    windows: Mapping[str, ClientWindows],
    splits: Mapping[str, Split],
    window_s: float,
) -> dict[str, np.ndarray]:
    """Answer each client's training windows by models that were trained without the windows' session."""
    found: dict[str, np.ndarray] = {}
    for name in windows:
        train = windows[name].select(splits[name].train)
        broadcast = simulation.setup.method.broadcast(simulation.state, name)
        out = {candidate: np.full(len(train), -1) for candidate in CANDIDATES}
        for fold in session_folds(train, FOLDS, window_s):
            network = simulation.network_of[name]
            job = ClientJob(name, network.setup, network.initial, broadcast, _examples(train, fold.train))
            ((_, result),) = simulation.engine.run([job], simulation.round_number + 1)
            x = torch.from_numpy(train.x[fold.test])
            for candidate, model in candidates(simulation, shared, result.client).items():
                out[candidate][fold.test] = answers(simulation, model, x)
        for candidate, predicted in out.items():
            found[f"{name}/validated_{candidate}"] = predicted
        found[f"{name}/train_y"], found[f"{name}/train_session"] = train.y, train.session
    return found


def candidates(simulation: Simulation, shared: Client, client: Client) -> dict[str, Client]:
    """Return the networks among which a device chooses, by name."""
    method = simulation.setup.method
    if isinstance(method, SumMethod):
        heads = method.serving_models(client)
        shared, own = heads["shared"], heads["personalized"]
    else:
        shared, own = method.serving_model(shared), method.serving_model(client)
    return {"shared": shared, "personal": own, "midway": midway(shared, own)}


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


class Scored(NamedTuple):
    """One client: the macro-F1 of each candidate on its later windows, and what it knows when it chooses."""

    later: Mapping[str, float]
    held: Mapping[str, float]
    evidence: Mapping[str, Evidence]
    recall: float
    trained: np.ndarray
    forgets: bool = True

    def of_sums(self) -> Scored:
        """Return the same for heads of sums: none lies midway, and a head keeps the classes that a device lacks."""
        return self._replace(evidence={"personal": self.evidence["personal"]}, forgets=False)


NO_PRIOR, WITH_PRIOR, SERVED = "no prior", "with prior", "the rule"
RULES = ("shared", "personal", "midway", "higher score", NO_PRIOR, WITH_PRIOR, SERVED, "oracle")
"""Devices follow `SERVED`: a network is chosen with the prior, a head of sums without."""


def scored(path: Path, held_out: int, by_session: bool) -> list[Scored]:
    """Read a cell's clients that have `held_out` windows to choose by, and later ones of two classes or more."""
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    classes = len(arrays.pop("labels"))
    names = sorted({name.split("/")[0] for name in arrays})
    clients = [{key[len(name) + 1 :]: arrays[key] for key in arrays if key.startswith(f"{name}/")} for name in names]
    forgets = "analytic" not in path.stem
    found = (_scored(client, classes, held_out, by_session) for client in clients)
    return [result if forgets else result.of_sums() for result in found if result]


def _scored(client: Mapping[str, np.ndarray], classes: int, held_out: int, by_session: bool) -> Scored | None:
    held, later = _in_time(client["y"], client["start_s"], held_out)
    if len(held) < held_out or len(np.unique(client["y"][later])) < 2:
        return None

    def score(rows: np.ndarray) -> dict[str, float]:
        matrices = {name: confusion(client["y"][rows], client[name][rows], classes) for name in CANDIDATES}
        return {name: 100 * scores_of(matrix).macro_f1 for name, matrix in matrices.items()}

    if by_session:
        known = client["validated_personal"] >= 0
        y, session = client["train_y"][known], client["train_session"][known]
        right = {name: (client[f"validated_{name}"][known] == y).astype(float) for name in CANDIDATES}
    else:
        y, session = client["y"][held], client["session"][held]
        right = {name: (client[name][held] == y).astype(float) for name in CANDIDATES}
    evidence = {name: Evidence.of(y, right[name], right["shared"], session, classes) for name in CANDIDATES[1:]}
    recall = min(float(right["shared"][y == label].mean()) for label in np.unique(y))
    return Scored(score(later), score(held), evidence, recall, client["trained"] > 0)


def _in_time(y: np.ndarray, start_s: np.ndarray, held_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `held_out` windows, as many of each class as its share, and those later by two or more."""
    exact = np.bincount(y) * held_out / len(y)
    counts = exact.astype(int)
    counts[np.argsort(counts - exact, kind="stable")[: held_out - counts.sum()]] += 1
    held, later = [], []
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        members = members[np.argsort(start_s[members], kind="stable")]
        held.append(members[: counts[label]])
        later.append(members[counts[label] + (counts[label] > 0) :])
    return np.concatenate(held), np.concatenate(later)


def by_rule(clients: Sequence[Scored]) -> dict[str, list[float]]:
    """Return each client's macro-F1 on later windows under each rule."""
    rivals = clients[0].evidence
    sums = {name: np.sum([client.evidence[name].report() for client in clients], axis=0) for name in rivals}
    found: dict[str, list[float]] = {rule: [] for rule in RULES}
    for client in clients:
        for name in CANDIDATES:
            found[name].append(client.later[name])
        order = [name for name in ORDER if name in client.evidence or name == "shared"]
        found["higher score"].append(client.later[max(order, key=client.held.__getitem__)])
        alone = {name: Rival(evidence, None, client.forgets) for name, evidence in client.evidence.items()}
        informed = {
            name: candidate._replace(prior=Prior.of(sums[name], client.evidence[name].report()))
            for name, candidate in alone.items()
        }
        for rule, candidates in ((NO_PRIOR, alone), (WITH_PRIOR, informed)):
            gains = expected_gains(candidates, client.trained, client.recall)
            found[rule].append(client.later[likeliest(gains, order, reference="shared")])
        found[SERVED].append(found[WITH_PRIOR if client.forgets else NO_PRIOR][-1])
        found["oracle"].append(max(client.later[name] for name in order))
    return found


def table(folder: Path) -> None:
    """Print each rule's mean and worst tenth over clients, as means over seeds, and how far it gets."""
    shares: dict[tuple[str, str], list[float]] = {}
    losses: dict[tuple[str, str], list[float]] = {}
    kinds = sorted({path.stem.rsplit("-", 1)[0] for path in folder.glob("*.npz")})
    print("| federation | windows |", " | ".join(RULES), "|")
    print("|", " --- |" * (len(RULES) + 2))
    for kind in kinds:
        for held_out in HELD_OUT:
            for by_session in (False, True) if "days" in kind and "analytic" not in kind else (False,):
                runs = [
                    by_rule(found)
                    for path in folder.glob(f"{kind}-?.npz")
                    if (found := scored(path, held_out, by_session))
                ]
                if not runs:
                    continue
                means = {rule: float(np.mean([np.mean(run[rule]) for run in runs])) for rule in RULES}
                worst = {rule: float(np.mean([_worst_tenth(run[rule]) for run in runs])) for rule in RULES}
                cells = [f"{means[rule]:.1f}, {worst[rule]:.0f}" for rule in RULES]
                print(f"| {kind}{', by session' * by_session} | {held_out} |", " | ".join(cells), "|")
                if held_out in TARGETED and not by_session:
                    low, high = sorted((means["shared"], means["personal"]))
                    group = "sums" if "analytic" in kind else "networks"
                    for rule in RULES:
                        share = 100 * (means[rule] - low) / (means["oracle"] - low)
                        shares.setdefault((group, rule), []).append(share)
                        losses.setdefault((group, rule), []).append(means[rule] - high)
    print()
    for (group, rule), found in shares.items():
        print(
            f"{group}, {rule}: {np.mean(found):.1f} % of the way from the worse fixed choice to the oracle "
            f"({len(found)} rows); at worst {min(losses[group, rule]):+.1f} from the better fixed choice"
        )


def _worst_tenth(scores: Sequence[float]) -> float:
    return float(np.mean(sorted(scores)[: max(1, round(len(scores) / 10))]))


def main() -> None:
    """Collect what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("collect", "table"))
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("runs/serving-choice"))
    given = parser.parse_args()
    if given.what == "table":
        table(given.out)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    for cell in cells():
        path = given.out / f"{cell.name}.npz"
        if not path.exists():
            np.savez_compressed(given.out / "part.npz", **collect(cell, given.data_root, default_cache_dir()))
            (given.out / "part.npz").rename(path)
            print(cell.name, flush=True)


if __name__ == "__main__":
    main()
