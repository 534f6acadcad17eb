"""What a finished run leaves in its directory: the summary, every client's scores, the confusion matrices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from federation import wire
from sim.checkpoint import write_atomically
from sim.evaluation import Matrix, plain, spread, total
from sim.settings import RunSettings
from sim.simulation import Simulation


def write_results(simulation: Simulation, settings: RunSettings, out: Path, extra: dict[str, Any]) -> dict[str, Any]:
    """Score the best round's models and the server's last one, write the files, and return the summary.

    `extra` is laid over the summary; its "seconds" are added to the simulation's.
    """
    general = simulation.generalization()
    last = simulation.global_matrices()
    write_json(out / "client_scores.json", _client_scores(simulation, general, last))
    write_json(out / "confusion.json", _confusion(simulation, general, last))
    seconds = {**simulation.seconds, **extra.pop("seconds", {})}
    summary = {
        **_summary(simulation, settings, general, last),
        **_bytes(out),
        "client_bytes": client_bytes(simulation),
        **extra,
        "seconds": {**{k: round(v, 3) for k, v in seconds.items()}, "total": round(sum(seconds.values()), 3)},
    }
    write_json(out / "summary.json", summary)
    return summary


def _summary(
    simulation: Simulation, settings: RunSettings, general: dict[str, Matrix], last: dict[str, Matrix]
) -> dict[str, Any]:
    best = simulation.board
    return {
        "schema": 1,
        "method": settings.method["name"],
        "model": "+".join(model.name for model in settings.models),
        "data": settings.data,
        "clients": len(simulation.data.clients),
        "rounds": settings.rounds.rounds,
        "epochs_total": settings.rounds.rounds * settings.task.epochs,
        "seed": settings.task.seed,
        "best_round": best.best_round,
        "personalization": best.best_record["personalization"],
        "generalization": spread(general),
        "global": best.best_record["global"],
        "global_per_client": best.best_record["global_per_client"],
        "global_at_last_round": plain(total(last)) if last else None,
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


def _client_scores(simulation: Simulation, general: dict[str, Matrix], last: dict[str, Matrix]) -> dict[str, Any]:
    counts, own = simulation.data.per_class(), simulation.board.best_matrices
    return {
        name: {
            "personalization": _scores(own.get(name)),
            "generalization": _scores(general.get(name)),
            "global": _scores(last.get(name)),
            "test": counts[name]["test"],
            "train": counts[name]["train"],
        }
        for name in sorted(own.keys() | last.keys())
    }


def _scores(matrix: Matrix | None) -> dict[str, float | None] | None:
    return None if matrix is None else plain(matrix)


def _confusion(simulation: Simulation, general: dict[str, Matrix], last: dict[str, Matrix]) -> dict[str, Any]:
    own = simulation.board.best_matrices
    parts = {"personalization": own, "generalization": general, "global": last}
    return {name: total(part).tolist() if spread(part) else None for name, part in parts.items()}


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())
