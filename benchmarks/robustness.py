"""What hostile clients do to a federation under each of the server's rules: the table of docs/robustness.md.

Ten people of MotionSense, one to three of them hostile in every round; FedAvg with a small CNN. The score is the
macro-F1 of the server's model on the test sets of all ten. Every cell is one run, and a line of `cells.jsonl`; the same
command goes on with what is missing, and prints the tables from what is there:

    python benchmarks/robustness.py --data-root DATA --out runs/robustness
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from cell_file import CellFile

from federation.aggregation.screening import Screening
from sim.attacks import Attack
from sim.cli.options import build_experiment
from sim.data.federated_data import FederatedData
from sim.data.sources import get_source
from sim.experiment.options import AttackKind
from sim.presets import with_defaults
from sim.presets.preset import UNSCREENED
from sim.run import build_simulation, load_data, resolve

CLIENTS, ROUNDS, LR = 10, 6, 5e-3
SHARES = (1, 2, 3)
ATTACKS: tuple[AttackKind, ...] = ("noise", "examples", "scaling", "sign_flip", "label_flip", "little_is_enough")
PLAN = ("rounds.max_weight_ratio=2", "rounds.norm_factor=10")
RULES: dict[str, tuple[str, ...]] = {
    "mean": (),
    "capped weights": PLAN[:1],
    "capped, norms judged (a plan's default)": PLAN,
    "capped, norms judged by 4": (PLAN[0], "rounds.norm_factor=4"),
    "clipped to the norm 3": ("rounds.clip_norm=3",),
    "trimmed mean, 0.3": ("aggregation=trimmed_mean", "trim=0.3"),
    "median": ("aggregation=median",),
    "Krum": ("aggregation=krum",),
    "median, capped, norms judged": ("aggregation=median", *PLAN),
}
UNWEIGHED = ("clipped to the norm 3", "trimmed mean, 0.3", "median", "Krum", "median, capped, norms judged")
"""Rules that do not weigh by examples: to them the attack `examples` is `sign_flip`, and is not run again."""


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--out", type=Path, required=True, help="folder of cells.jsonl")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    torch.set_num_threads(1)
    file = CellFile(given.out, _key)
    data: FederatedData | None = None
    for cell in file.missing(_cells(given.seeds)):
        data = data or _ten(given.data_root, given.out / "windows")
        began = time.perf_counter()
        file.add({**cell, **_play(cell, data), "seconds": round(time.perf_counter() - began, 2)})
    print(tables(file.done))


def tables(cells: list[dict[str, Any]]) -> str:
    """Write a table for each number of attackers; scores in percent, means over seeds."""
    parts = [_table(cells, hostile) for hostile in SHARES]
    return "\n\n".join(parts)


def _cells(seeds: list[int]) -> Iterator[dict[str, Any]]:
    """Yield what is to be run, the most telling first: all rules without an attack, then by share."""
    for seed in seeds:
        for rule in RULES:
            yield {"seed": seed, "rule": rule, "attack": "", "hostile": 0}
        for hostile in (2, 1, 3):
            for attack in ATTACKS:
                for rule in RULES:
                    if not (attack == "examples" and rule in UNWEIGHED):
                        yield {"seed": seed, "rule": rule, "attack": attack, "hostile": hostile}


def _key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return cell["seed"], cell["rule"], cell["attack"], cell["hostile"]


def _ten(root: Path, cache: Path) -> FederatedData:
    data = load_data(resolve(_settings(0, ())), root, cache, None)
    names = sorted(data.clients)[:CLIENTS]
    parts = {"clients": data.clients, "statistics": data.statistics}
    return replace(data, **{part: {name: by[name] for name in names} for part, by in parts.items()})


def _settings(seed: int, rule: tuple[str, ...]) -> Any:
    given = {
        "data": "motionsense", "method": "fedavg", "model": "har_cnn", "rounds": ROUNDS, "epochs": 1, "lr": LR,
        "seed": seed, "validation_share": 0.0, "engine": "serial", "eval_every": ROUNDS,
        "normalization": "federated",
        "set": [*UNSCREENED, "model.channels=[16,32]", "model.feature_dim=64", *rule],
    }  # fmt: skip
    return build_experiment(with_defaults(None, given), get_source("motionsense").labels({}), None)


def _play(cell: Mapping[str, Any], data: FederatedData) -> dict[str, Any]:
    hostile = int(cell["hostile"])
    rule = RULES[cell["rule"]]
    if cell["rule"] == "Krum":
        rule = (*rule, f"byzantine={max(1, hostile)}")
    # those in the middle of the alphabet: neither first nor last in any order
    attackers = frozenset(sorted(data.clients)[3 : 3 + hostile])
    attack = Attack(cell["attack"], attackers) if hostile else None
    simulation = build_simulation(resolve(_settings(int(cell["seed"]), rule)), attack.on_data(data) if attack else data)
    simulation.attack = attack
    excluded, failed, screening, score = 0, 0, Screening(), None
    honest_excluded = 0
    for record in simulation.run_rounds():
        screening = simulation.screening
        excluded += len(screening.excluded)
        honest_excluded += len(screening.excluded.keys() - attackers)
        failed += "failed" in record
        score = record["global"]["macro_f1"] if record["global"] else None
    return {
        "score": None if score is None else round(100 * score, 2),
        "excluded": excluded,
        "honest_excluded": honest_excluded,
        "failed": failed,
    }


def _table(cells: list[dict[str, Any]], hostile: int) -> str:
    head = ["none", *(attack.replace("_", " ") for attack in ATTACKS)]
    lines = [f"{hostile} of {CLIENTS} hostile:", "", f"| rule | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for rule in RULES:
        scores = [_mean(cells, rule, "", 0), *(_mean(cells, rule, attack, hostile) for attack in ATTACKS)]
        lines.append(f"| {rule} | {' | '.join(scores)} |")
    return "\n".join(lines)


def _mean(cells: list[dict[str, Any]], rule: str, attack: str, hostile: int) -> str:
    if attack == "examples" and rule in UNWEIGHED:
        attack = "sign_flip"
    found = [
        cell["score"]
        for cell in cells
        if (cell["rule"], cell["attack"], cell["hostile"]) == (rule, attack, hostile) and cell["score"] is not None
    ]
    return f"{sum(found) / len(found):.1f}" if found else "–"


if __name__ == "__main__":
    main()
