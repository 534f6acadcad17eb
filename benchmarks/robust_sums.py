"""What hostile clients do to exact sums under each of the server's rules: the second tables of docs/robustness.md.

All people of MotionSense and UCI HAR, a tenth or three tenths of them hostile. For each set and seed the simulation
makes every client's sums once; hostile ones are put in their place (`sim.attacks_on_sums`), combined by the function
that live publications call (`federation.aggregation.present_sums`), and the simulation scores the head that comes out
on the test windows of all people, in macro-F1. The seed draws the cosines and who is hostile. Every cell is a line of
`cells.jsonl`; the same command goes on with what is missing, and prints the tables from what is there:

    python benchmarks/robust_sums.py --data-root DATA --out runs/robust_sums
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from federation.aggregation.present_sums import combined
from federation.aggregation.ridge_bounds import implausibility
from federation.methods import method_from_json
from federation.plan import RoundSettings
from federation.records import Update
from federation.seeds import generator
from sim.attacks import Attack, Kind
from sim.attacks_on_sums import REPEATED
from sim.cli.options import build_experiment
from sim.data.sources import get_source
from sim.evaluation import total
from sim.presets import with_defaults
from sim.presets.preset import UNSCREENED
from sim.run import build_simulation, load_data
from sim.simulation import Simulation

SETS = {"motionsense": "motionsense", "ucihar": "uci_har"}
COSINES = 200
SHARES = (0.1, 0.3)
ATTACKS: tuple[Kind, ...] = ("label_flip", "class_swap", "noise", "sign_flip", "scaling", "collusion")
OFF: dict[str, Any] = {"max_weight_ratio": None, "norm_factor": None}
RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bounds alone": ({}, OFF),
    "capped, norms judged (a plan's default)": ({}, {}),
    "trimmed, 0.1": ({"aggregation": "trimmed_mean", "trim": 0.1}, {}),
    "trimmed, 0.35": ({"aggregation": "trimmed_mean", "trim": 0.35}, {}),
    "median": ({"aggregation": "median"}, {}),
    "median of 8 groups": ({"aggregation": "median", "groups": 8}, {}),
}
"""Each one's options of the method, and settings of rounds."""


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with motionsense and uci_har")
    parser.add_argument("--out", type=Path, required=True, help="folder of cells.jsonl")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "cells.jsonl"
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {_key(cell) for cell in done}
    for seed in given.seeds:
        for name in given.sets:
            missing = [cell for cell in _cells(name, seed) if _key(cell) not in known]
            if not missing:
                continue
            simulation = _played(name, seed, given.data_root, given.out / "windows")
            for cell in missing:
                finished = {**cell, **_score(cell, simulation)}
                with path.open("a") as lines:
                    lines.write(json.dumps(finished) + "\n")
                done.append(finished)
                print(json.dumps(finished), flush=True)
    print(tables(done))


def tables(cells: list[dict[str, Any]]) -> str:
    """Write a table for each set and share; scores in percent, means over seeds."""
    return "\n\n".join(_table(cells, name, share) for name in SETS for share in SHARES)


def _cells(name: str, seed: int) -> Iterator[dict[str, Any]]:
    for rule in RULES:
        yield {"set": name, "seed": seed, "rule": rule, "attack": "", "share": 0.0}
    for share in SHARES:
        for attack in ATTACKS:
            for rule in RULES:
                yield {"set": name, "seed": seed, "rule": rule, "attack": attack, "share": share}


def _key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return cell["set"], cell["seed"], cell["rule"], cell["attack"], cell["share"]


def _played(name: str, seed: int, root: Path, cache: Path) -> Simulation:
    """Return a simulation after its one round, with every client's own sums."""
    given = {
        "data": name, "method": "analytic", "model": "har_features", "rounds": 1, "seed": seed, "engine": "serial",
        "normalization": "none", "validation_share": 0.0, "eval_every": 1,
        "set": [*UNSCREENED, f"model.cosines={COSINES}"],
    }  # fmt: skip
    settings = build_experiment(with_defaults(None, given), get_source(name).labels({}), None)
    simulation = build_simulation(settings, load_data(settings, root / SETS[name], cache, None))
    simulation.eval_every = 10**9
    for _record in simulation.run_rounds():
        pass
    return simulation


def _score(cell: Mapping[str, Any], simulation: Simulation) -> dict[str, Any]:
    sizes, seed = simulation.data.train_sizes, int(cell["seed"])
    own = [Update(name, sizes[name], 0, tree) for name, tree in sorted(simulation.contributions.trees.items())]
    chosen = generator(seed, "hostile").permutation(len(own))[: round(float(cell["share"]) * len(own))]
    attackers = frozenset(own[int(index)].client_id for index in chosen)
    sent = Attack(cell["attack"], attackers).on_updates(own, {}, seed, 1) if attackers else own
    options, rounds = RULES[cell["rule"]]
    method = method_from_json({"name": "analytic", **options})
    repeated = REPEATED if cell["attack"] == "scaling" else 1
    refused = {
        update.client_id
        for update in sent
        if implausibility(
            update.tensors, update.examples * (repeated if update.client_id in attackers else 1), method.clip
        )
    }
    parts = {update.client_id: update for update in sent if update.client_id not in refused}
    found = combined(method, RoundSettings(**rounds), seed, simulation.state, list(parts), parts.__getitem__)
    simulation.state = {**simulation.state, "params": found.state["params"], "sums": found.state["sums"]}
    score = simulation.task.metrics(total(simulation.global_statistics()))["macro_f1"]
    return {
        "score": round(100 * score, 2),
        "refused": len(refused),
        "used": int(found.state["sums"]["clients"]),
        "left_out": len(found.screening.left_out),
        "capped": len(found.screening.capped),
    }


def _table(cells: list[dict[str, Any]], name: str, share: float) -> str:
    head = ["none", *(attack.replace("_", " ") for attack in ATTACKS)]
    lines = [f"{name}, {share:.0%} hostile:", "", f"| rule | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for rule in RULES:
        scores = [_mean(cells, name, rule, "", 0.0), *(_mean(cells, name, rule, attack, share) for attack in ATTACKS)]
        lines.append(f"| {rule} | {' | '.join(scores)} |")
    return "\n".join(lines)


def _mean(cells: list[dict[str, Any]], name: str, rule: str, attack: str, share: float) -> str:
    wanted = (name, rule, attack, share)
    found = [cell["score"] for cell in cells if (cell["set"], cell["rule"], cell["attack"], cell["share"]) == wanted]
    return f"{mean(found):.1f}" if found else "–"


if __name__ == "__main__":
    main()
