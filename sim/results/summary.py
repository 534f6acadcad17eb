"""What a finished run leaves in its directory: the summary, every client's scores, the confusion matrices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from federation import wire
from federation.tasks.task import Statistics, Task
from gaitway.files import write_file
from sim.experiment.settings import Experiment
from sim.rounds.simulation import Simulation
from sim.scores.best_round import Chosen
from sim.scores.evaluation import plain, spread, total
from sim.scores.records import Selection

Generalization = dict[int, dict[str, Statistics]]
"""Statistics of each client's model on the union of test sets, by the round of the models."""


def write_results(simulation: Simulation, settings: Experiment, out: Path, extra: dict[str, Any]) -> dict[str, Any]:
    """Score the chosen rounds' models on the union of test sets, write the files, and return the summary.

    The best round's scores stand by themselves, those of the last and of the one chosen by validation under their own
    names. `extra` is laid over the summary; its "seconds" are added to the simulation's.
    """
    chosen = simulation.best_round.selections(simulation.scored_clients())
    general: Generalization = {}
    for each in filter(None, chosen.values()):
        if each.round not in general:  # two that chose the same round have the same models
            general[each.round] = simulation.generalization(each)
    write_json(out / "client_scores.json", _client_scores(simulation, chosen, general))
    write_json(out / "confusion.json", _confusion(simulation.task, simulation.best_round.best, general))
    seconds = {**simulation.seconds, **extra.pop("seconds", {})}
    summary = {
        **_summary(simulation, settings),
        "best_round": simulation.best_round.best.round,
        **_by_selection({name: _selected(simulation.task, each, general) for name, each in chosen.items()}),
        **_bytes(out),
        "client_bytes": client_bytes(simulation),
        **extra,
        "seconds": {**{k: round(v, 3) for k, v in seconds.items()}, "total": round(sum(seconds.values()), 3)},
    }
    write_json(out / "summary.json", summary)
    return summary


def _by_selection(found: Mapping[Selection, Mapping[str, Any] | None]) -> dict[str, Any]:
    """Lay the best round's entries beside the others' under their names."""
    best = {key: value for key, value in (found["best"] or {}).items() if key != "round"}
    return {**best, "validation": found["validation"], "last": found["last"]}


def _selected(task: Task, chosen: Chosen | None, general: Generalization) -> dict[str, Any] | None:
    if chosen is None:
        return None
    return {
        "personalization": chosen.record["personalization"],
        "generalization": spread(task, general[chosen.round]),
        "global": chosen.record["global"],
        "global_per_client": chosen.record["global_per_client"],
        "round": chosen.round,
    }


def _summary(simulation: Simulation, settings: Experiment) -> dict[str, Any]:
    return {
        "schema": 1,
        "method": settings.method["name"],
        "model": "+".join(model.name for model in settings.models),
        "data": settings.dataset,
        "clients": len(simulation.data.clients),
        "rounds": settings.rounds.rounds,
        "epochs_total": settings.rounds.rounds * settings.training.epochs,
        "seed": settings.training.seed,
    }


def _bytes(out: Path) -> dict[str, float]:
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return {name: float(np.mean([line[name] for line in lines])) for name in ("bytes_up", "bytes_down")}


def client_bytes(simulation: Simulation) -> float:
    """Return the bytes that one client holds while it trains, the mean over its networks.

    That is its network, what the method remembers on it, and what the round's loss needs beside them, such as the
    received model as an anchor; not the examples, the optimizer's moments and the activations.
    """
    method = simulation.setup.method
    broadcast = method.broadcast(simulation.state, min(simulation.network_of))
    held = [method.receive(network.initial, broadcast) for network in simulation.networks]
    return float(np.mean([wire.tensor_bytes({**client._asdict(), "round": state}) for client, state in held]))


def _client_scores(
    simulation: Simulation, chosen: Mapping[Selection, Chosen | None], general: Generalization
) -> dict[str, Any]:
    task, last = simulation.task, simulation.best_round.last
    counts = simulation.data.per_class(task)
    return {
        name: {
            **_by_selection({which: _client(task, name, each, general) for which, each in chosen.items()}),
            "test": counts[name]["test"],
            "train": counts[name]["train"],
        }
        for name in sorted(last.statistics.keys() | last.served.keys())
    }


def _client(task: Task, name: str, chosen: Chosen | None, general: Generalization) -> dict[str, Any] | None:
    if chosen is None:
        return None
    return {
        "personalization": _scores(task, chosen.statistics.get(name)),
        "generalization": _scores(task, general[chosen.round].get(name)),
        "global": _scores(task, chosen.served.get(name)),
    }


def _scores(task: Task, statistics: Statistics | None) -> dict[str, float | None] | None:
    return None if statistics is None else plain(task, statistics)


def _confusion(task: Task, best: Chosen, general: Generalization) -> dict[str, Any]:
    """Confusion matrices summed over clients; none where nobody has examples, or the task no classes."""
    parts = {"personalization": best.statistics, "generalization": general[best.round], "global": best.served}
    sums = {name: total(part) if spread(task, part) else {} for name, part in parts.items()}
    return {name: each["confusion"].tolist() if "confusion" in each else None for name, each in sums.items()}


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    write_file(path, (json.dumps(value, indent=1) + "\n").encode())
