"""What hostile clients do to exact sums under each of the server's rules: the second tables of docs/robustness.md.

All people of MotionSense and UCI HAR, a tenth or three tenths of them hostile. For each set and seed the simulation
makes every client's sums once; hostile ones are put in their place (`sim.attacks`), combined by the function
that live publications call (`federation.aggregation.present_sums`), and the simulation scores the head that comes out
on the test windows of all people, in macro-F1. The seed draws who is hostile, and deals groups. Every cell is a line of
`cells.jsonl`; the same command goes on with what is missing, and prints the tables from what is there:

    python benchmarks/robust_sums.py --data-root DATA --out runs/robust_sums
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from cell_file import CellFile

from federation.aggregation.present_sums import combined
from federation.aggregation.ridge import SUM_STEPS, implausibility
from federation.methods import method_from_json
from federation.plan import RoundSettings
from federation.records import Batch, Output, Tree, Update
from federation.records.tree import total as sum_of
from federation.seeds import generator
from sim.attacks import Attack
from sim.cli.options import build_experiment
from sim.data.sources import get_source
from sim.experiment.options import AttackKind
from sim.presets import with_defaults
from sim.presets.preset import UNSCREENED
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, load_data, resolve

SETS = {"motionsense": "motionsense", "ucihar": "uci_har"}
COSINES = 200
SHARES = (0.1, 0.3)
ATTACKS: tuple[AttackKind, ...] = ("label_flip", "class_swap", "noise", "sign_flip", "scaling", "collusion")
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
    file = CellFile(given.out, _key)
    for seed in given.seeds:
        for name in given.sets:
            if missing := file.missing(_cells(name, seed)):
                played = Played.of(_simulation(name, seed, given.data_root, given.out / "windows"))
                for cell in missing:
                    file.add({**cell, **_score(cell, played)})
    print(tables(file.done))


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


def _simulation(name: str, seed: int, root: Path, cache: Path) -> Simulation:
    """Return a simulation of one round."""
    given = {
        "data": name, "method": "analytic", "model": "har_features", "rounds": 1, "seed": seed, "engine": "serial",
        "normalization": "none", "validation_share": 0.0, "eval_every": 1,
        "set": [*UNSCREENED, f"model.cosines={COSINES}"],
    }  # fmt: skip
    settings = build_experiment(with_defaults(None, given), get_source(name).labels({}), None)
    return build_simulation(resolve(settings), load_data(resolve(settings), root / SETS[name], cache, None))


@dataclass
class Played:
    """A simulation whose clients have sent their sums, and what the network below the head makes of all test windows.

    Only the head differs between cells, so that nothing else is computed again.
    """

    simulation: Simulation
    outputs: list[tuple[Batch, Output]]

    @classmethod
    def of(cls, simulation: Simulation) -> Played:
        """Run the simulation, and the network once over all test windows.

        Raises:
            RuntimeError: if the scores are not those of the simulation.
        """
        (record,) = simulation.run_rounds()
        setup, initial, outputs = simulation.setup, simulation.initial, []
        with torch.no_grad():
            for test in simulation.data.test.values():
                batch = Batch(test.x, test.y, torch.ones(len(test.y)))
                output = setup.network.evaluate(initial.params, initial.buffers, setup.inputs(test.x), None)
                outputs.append((batch, output))
        made = cls(simulation, outputs)
        if abs(made.score(simulation.state) - record["global"]["macro_f1"]) > 1e-9:
            raise RuntimeError("the simulation has another score of the same head; do both see the same windows?")
        return made

    def score(self, state: Tree) -> float:
        """Return the macro-F1 of a state's head on all test windows."""
        params, task = state["params"], self.simulation.task
        weight, bias = params["head.weight"], params["head.bias"]
        found = [
            task.statistics(output._replace(logits=output.features @ weight.T + bias), batch)
            for batch, output in self.outputs
        ]
        return task.metrics(sum_of(found))["macro_f1"]


def _score(cell: Mapping[str, Any], played: Played) -> dict[str, Any]:
    simulation = played.simulation
    sizes, seed = simulation.data.train_sizes, int(cell["seed"])
    own = [Update(name, sizes[name], 0, tree) for name, tree in sorted(simulation.contributions.trees.items())]
    chosen = generator(seed, "hostile").permutation(len(own))[: round(float(cell["share"]) * len(own))]
    attackers = frozenset(own[int(index)].client_id for index in chosen)
    sent = Attack(cell["attack"], attackers).on_updates(own, {}, seed, 1) if attackers else own
    options, rounds = RULES[cell["rule"]]
    method = method_from_json({"name": "analytic", **options})
    refused = {
        update.client_id
        for update in sent
        if update.client_id in attackers and implausibility(update.tensors, _windows(update), method.clip)
    }
    parts = {update.client_id: update for update in sent if update.client_id not in refused}
    found = combined(method, RoundSettings(**rounds), seed, simulation.state, list(parts), parts.__getitem__)
    score = played.score(found.state)
    return {
        "score": round(100 * score, 2),
        "refused": len(refused),
        "used": int(found.state["sums"]["clients"]),
        "excluded": len(found.screening.excluded),
        "capped": len(found.screening.capped),
    }


def _windows(update: Update) -> int:
    """Return how many windows the sums hold: what a hostile client claims."""
    return round(float((update.tensors["moment"][-1].double() / SUM_STEPS).square().sum()) + 1)


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
