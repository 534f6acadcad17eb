"""Writes example run directories in the layout of `python -m sim run`, with scores that tests can foresee."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

LABELS = ("downstairs", "upstairs", "sitting", "standing", "walking", "jogging")


def spread(mean: float, std: float = 0.05) -> dict[str, Any]:
    """Scores over clients, accuracy 0.01 above macro-F1."""
    return {"macro_f1": {"mean": mean, "std": std}, "accuracy": {"mean": mean + 0.01, "std": std}}


def plain(score: float) -> dict[str, float]:
    """One model's scores, accuracy 0.01 above macro-F1."""
    return {"macro_f1": score, "accuracy": score + 0.01}


def write_run(
    path: Path,
    *,
    clients: int = 24,
    rounds: int = 12,
    method: str = "fedavg",
    model: str = "har_cnn",
    seed: int = 0,
    personalization: float = 0.9,
    generalization: float = 0.6,
    global_score: float | None = 0.7,
    std: float = 0.05,
    finished: bool = True,
    names: tuple[str, ...] = (),
    config: dict[str, Any] | None = None,
) -> Path:
    """Write one run; `config` replaces keys of config.json."""
    path.mkdir(parents=True)
    ids = [*names, *(f"{k + 1}" for k in range(len(names), clients))]
    settings = _config(method, model, seed, rounds) | (config or {})
    if "model_options" in settings:
        settings["model"] = {**settings["model"], "options": settings.pop("model_options")}
    labels = settings["labels"]
    random = np.random.default_rng(11)  # not the run's seed: the partition is the same for every seed
    counts = {name: _counts(random, len(labels)) for name in ids}
    _dump(path / "config.json", settings)
    _dump(path / "clients.json", counts)
    done = rounds if finished else rounds // 2
    lines = [_round(number, done, ids, personalization, global_score, std) for number in range(1, done + 1)]
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if not finished:
        return path
    _dump(path / "summary.json", _summary(settings, ids, lines, personalization, generalization, global_score, std))
    _dump(
        path / "client_scores.json",
        _client_scores(
            random, counts, personalization, generalization, global_score, bool(settings.get("validation_share"))
        ),
    )
    matrix = _matrix(random, len(labels))
    no_server_model = global_score is None
    confusion = {"personalization": matrix, "generalization": matrix, "global": None if no_server_model else matrix}
    _dump(path / "confusion.json", confusion)
    return path


def _config(method: str, model: str, seed: int, rounds: int) -> dict[str, Any]:
    return {
        "schema": 2,
        "dataset": "motionsense",
        "model": {"name": model, "options": {}},
        "method": {"name": method, "weighting": "examples"},
        "training": {"classes": 6, "epochs": 5, "batch_size": 64, "optimizer": "adam", "lr": 1e-4, "seed": seed},
        "rounds": {"rounds": rounds, "clients_per_round": None},
        "engine": "serial",
        "data": {"split": "temporal", "normalization": "federated"},
        "split_leaks": False,
        "validation_share": 0.0,
        "labels": LABELS,
        "preset": None,
        "versions": {"python": "3.11.9", "torch": "2.13.0", "numpy": "2.3.0", "gaitway": "0.1.0"},
        "hardware": "2 cores of an x86-64 machine",
        "parameters": {"trained": 1_446_000, "prototypes": 0},
    }


def _counts(random: np.random.Generator, classes: int) -> dict[str, Any]:
    train = random.integers(20, 400, classes) * (random.random(classes) > 0.15)
    test = train // 4
    return {
        "train": int(train.sum()),
        "test": int(test.sum()),
        "train_per_class": train.tolist(),
        "test_per_class": test.tolist(),
    }


def _round(number: int, rounds: int, ids: list[str], best: float, server: float | None, std: float) -> dict[str, Any]:
    grown = 1 - 0.8 ** (number * 20 / rounds)
    return {
        "round": number,
        "cohort": ids,
        "train_loss": 1.8 * 0.9**number + 0.05,
        "analyses": {
            "clients": len(ids),
            "server_loss": 2.1 * 0.9**number,
            "gradient_dissimilarity": 2.0 * 0.95**number,
            "gradient_square": 0.9**number,
            "aggregate_margin": 0.4 + 0.01 * number,
        },
        "evaluated": True,
        "personalization": spread(best * grown, std),
        "generalization": None,
        "global": None if server is None else plain(server * grown),
        "bytes_up": 1_780_232,
        "bytes_down": 1_780_232,
        "seconds": {"train": 4.1, "aggregate": 0.2, "evaluate": 1.3, "analyses": 0.7},
    }


def _summary(
    settings: dict[str, Any],
    ids: list[str],
    lines: list[dict[str, Any]],
    personalization: float,
    generalization: float,
    server: float | None,
    std: float,
) -> dict[str, Any]:
    rounds = len(lines)
    best = {
        "personalization": spread(personalization, std),
        "generalization": spread(generalization, std),
        "global": None if server is None else plain(server),
    }
    seconds = {"train": 4.1 * rounds, "aggregate": 0.2 * rounds, "evaluate": 1.3 * rounds, "data": 3.0}
    return {
        "schema": 1,
        "method": settings["method"]["name"],
        "model": settings["model"]["name"],
        "data": settings["dataset"],
        "clients": len(ids),
        "rounds": rounds,
        "seed": settings["training"]["seed"],
        "best_round": rounds,
        **best,
        "validation": best | {"round": rounds} if settings.get("validation_share") else None,
        "last": best | {"round": rounds},
        "seconds": seconds | {"total": sum(seconds.values())},
        "bytes_up": 1_780_232,
        "bytes_down": 1_780_232,
        "epochs_total": 5 * rounds,
    }


def _client_scores(
    random: np.random.Generator, counts: dict[str, Any], own: float, other: float, server: float | None, validated: bool
) -> dict[str, Any]:
    def near(score: float) -> dict[str, float]:
        return plain(float(np.clip(random.normal(score, 0.05), 0, 0.99)))

    def entry(sizes: dict[str, Any]) -> dict[str, Any]:
        best = {
            "personalization": near(own),
            "generalization": near(other),
            "global": None if server is None else near(server),
        }
        sizes = {"test": sizes["test"], "train": sizes["train"]}
        return {**best, "validation": best if validated else None, "last": best, **sizes}

    return {name: entry(sizes) for name, sizes in counts.items()}


def _matrix(random: np.random.Generator, classes: int) -> list[list[int]]:
    matrix: list[list[int]] = (random.integers(0, 60, (classes, classes)) + 900 * np.eye(classes, dtype=int)).tolist()
    return matrix


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
