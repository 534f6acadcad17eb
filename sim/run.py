"""One run from its settings to its directory: data, rounds, checkpoints, scores, plots, report."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch

import models
from federation.client_round import Setup
from federation.forward import initial_client, initial_model, network
from federation.methods import method_from_json
from federation.scores import scores_of
from har_pipeline import PipelineSettings, dataset_settings, prepare
from models.checkpoint import CheckpointInfo, save_checkpoint
from sim import checkpoint
from sim.data import FederatedData, federated_data
from sim.engines import engine_named
from sim.errors import RunDirectoryError
from sim.evaluation import Evaluator, Matrix, plain, spread
from sim.settings import RunSettings
from sim.simulation import Simulation

Report = Callable[[str, dict[str, Any]], None]
"""Called with ("client", {...}) and ("round", {...}) as the run goes on."""

VOLATILE = ("versions", "hardware", "parameters", "split_leaks", "labels", "engine", "chunk", "threads", "device")
"""Keys of config.json that may differ when a run is resumed."""


def run(
    settings: RunSettings,
    data: FederatedData,
    out: Path,
    *,
    data_seconds: float = 0.0,
    checkpoint_every_s: float = 60.0,
    report: Report = lambda _kind, _what: None,
) -> dict[str, Any]:
    """Run, or go on with, the federation of `settings` in the directory `out`, and return the summary.

    Raises:
        RunDirectoryError: if `out` holds another configuration's run, or a damaged checkpoint.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(settings.threads)
    simulation = build_simulation(settings, data)
    _claim(out, settings, data, simulation)
    simulation.on_client = lambda client_id: report("client", {"client": client_id})
    saved = checkpoint.load(out / "checkpoint.bin", settings.device)
    if saved:
        simulation.restore(saved)
    _keep_lines(out / "rounds.jsonl", simulation.round_number)
    _play(simulation, out, checkpoint_every_s, report)
    summary = _finish(simulation, settings, out, data_seconds)
    _save_models(simulation, settings, data, out)
    return summary


def load_data(
    settings: RunSettings, root: Path | None, cache: Path | None, progress: Callable[..., None] | None
) -> FederatedData:
    """Prepare the windows (or take them from the cache), split and normalize them."""
    pipeline = PipelineSettings.from_json({**dataset_settings(settings.data).to_json(), **settings.pipeline})
    dataset = prepare(
        settings.data, root, pipeline, cache_dir=cache, progress=progress, options=settings.data_options or None
    )
    return federated_data(
        dataset,
        split=settings.split,
        normalization=settings.normalization,
        seed=settings.task.seed,
        device=settings.device,
    )


def build_simulation(settings: RunSettings, data: FederatedData) -> Simulation:
    """Join the settings' parts into a simulation at round 0."""
    spec, task = settings.model, settings.task
    module = initial_model(lambda: models.build(spec.name, classes=task.classes, **spec.options), task.seed)
    method = method_from_json(settings.method)
    setup = Setup(method, task, network(module.to(settings.device)))
    # on CUDA many models at once fill the device; on the CPU one after the other is faster
    together = settings.chunk if settings.engine == "stacked" and settings.device != "cpu" else 1
    return Simulation(
        setup=setup,
        rounds=settings.rounds,
        data=data,
        initial=method.join(initial_client(module), task),
        engine=engine_named(settings.engine, settings.chunk),
        evaluator=Evaluator(setup, settings.eval_batch, together),
        eval_every=settings.eval_every,
    )


def _play(simulation: Simulation, out: Path, checkpoint_every_s: float, report: Report) -> None:
    written = time.monotonic()
    last = simulation.rounds.rounds
    with (out / "rounds.jsonl").open("a") as lines:
        for record in simulation.play():
            lines.write(json.dumps(record) + "\n")
            lines.flush()
            report("round", record)
            if record["round"] == last or time.monotonic() - written >= checkpoint_every_s:
                checkpoint.save(out / "checkpoint.bin", simulation.checkpoint())
                written = time.monotonic()


def _finish(simulation: Simulation, settings: RunSettings, out: Path, data_seconds: float) -> dict[str, Any]:
    general = simulation.generalization()
    last = simulation.global_matrix()
    seconds = {**simulation.seconds, "data": data_seconds}
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    summary = {
        "schema": 1,
        "method": settings.method["name"],
        "model": settings.model.name,
        "data": settings.data,
        "clients": len(simulation.data.clients),
        "rounds": settings.rounds.rounds,
        "epochs_total": settings.rounds.rounds * settings.task.epochs,
        "seed": settings.task.seed,
        "best_round": simulation.best_round,
        "personalization": simulation.best_record["personalization"],
        "generalization": spread(general),
        "global": simulation.best_record["global"],
        "global_at_last_round": None if last is None else plain(last),
        "bytes_up": float(np.mean([line["bytes_up"] for line in lines])),
        "bytes_down": float(np.mean([line["bytes_down"] for line in lines])),
        "seconds": {**{k: round(v, 3) for k, v in seconds.items()}, "total": round(sum(seconds.values()), 3)},
    }
    _write(out / "client_scores.json", _client_scores(simulation, general))
    _write(out / "confusion.json", _confusion(simulation, general, last))
    _write(out / "summary.json", summary)
    return summary


def _client_scores(simulation: Simulation, general: dict[str, Matrix]) -> dict[str, Any]:
    counts = simulation.data.per_class()
    return {
        name: {
            "personalization": _scores(matrix),
            "generalization": _scores(general[name]),
            "test": counts[name]["test"],
            "train": counts[name]["train"],
        }
        for name, matrix in simulation.best_matrices.items()
    }


def _scores(matrix: Matrix) -> dict[str, float | None]:
    scores = scores_of(matrix)
    return {name: None if np.isnan(value) else value for name, value in scores._asdict().items()}


def _confusion(simulation: Simulation, general: dict[str, Matrix], last: Matrix | None) -> dict[str, Any]:
    return {
        "personalization": sum(simulation.best_matrices.values(), np.int64(0)).tolist(),
        "generalization": sum(general.values(), np.int64(0)).tolist(),
        "global": None if last is None else last.tolist(),
    }


def _save_models(simulation: Simulation, settings: RunSettings, data: FederatedData, out: Path) -> None:
    """Leave what `python -m export` reads: the global model, and each client's model of the best round."""
    folder = out / "models"
    folder.mkdir(exist_ok=True)
    chosen, method = dict(simulation.best), simulation.setup.method
    if method.has_global_model:
        chosen["global"] = method.global_model(simulation.initial, method.broadcast(simulation.state, ""))
    for name, client in chosen.items():
        # under `client` normalization the global model has no statistics of its own: it gets the sum of all clients'
        statistics = data.statistics.get(name, reduce(add, data.statistics.values()))
        info = CheckpointInfo(
            model=settings.model.name,
            options=settings.model.options,
            labels=data.labels,
            mean=tuple(statistics.mean.tolist()),
            std=tuple(statistics.std.tolist()),
            method=settings.method["name"],
            round=simulation.best_round if name != "global" else simulation.round_number,
            federation=f"sim-{settings.data}",
        )
        served = method.deployed(client)
        save_checkpoint(folder / f"{name}.safetensors", {**served.params, **served.buffers}, info)


def _claim(out: Path, settings: RunSettings, data: FederatedData, simulation: Simulation) -> None:
    """Write config.json, or refuse a directory that belongs to another configuration."""
    config = {**settings.model_dump(mode="json", by_alias=True), **_facts(data, simulation)}
    path = out / "config.json"
    if path.exists():
        old = json.loads(path.read_text())
        for key in sorted((set(old) | set(config)) - set(VOLATILE)):
            if old.get(key) != config.get(key):
                raise RunDirectoryError(
                    f"{out} holds a run with {key} = {old.get(key)!r}, this one has {config.get(key)!r}; "
                    "choose another --out, or delete that directory to begin again"
                )
    _write(path, config)
    _write(out / "clients.json", data.per_class())


def _facts(data: FederatedData, simulation: Simulation) -> dict[str, Any]:
    initial = simulation.initial
    prototypes = sum(v.numel() for n, v in initial.buffers.items() if n.endswith("prototypes"))
    return {
        "labels": list(data.labels),
        "split_leaks": data.split_leaks,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "gaitway": _own_version(),
        },
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} torch threads, {platform.system()}",
        "parameters": {"trained": sum(v.numel() for v in initial.params.values()), "prototypes": prototypes},
    }


def _own_version() -> str:
    try:
        return version("gaitway")
    except PackageNotFoundError:
        return "not installed"


def _keep_lines(path: Path, rounds: int) -> None:
    """Drop the lines that a kill left after the checkpoint; those rounds are played again."""
    lines = path.read_text().splitlines()[:rounds] if path.exists() else []
    checkpoint.write_atomically(path, "".join(line + "\n" for line in lines).encode())


def _write(path: Path, value: Any) -> None:
    checkpoint.write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())
