"""A run's claim on its directory: config.json, which the same run finds again and another one is refused by."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sim.data.federated_data import FederatedData
from sim.errors import RunDirectoryError
from sim.experiment import RunSettings
from sim.results.summary import write_json
from sim.simulation import Simulation

VOLATILE = frozenset(
    (
        *("versions", "hardware", "parameters", "split_leaks", "labels"),
        *("engine", "workers", "chunk", "compile", "client_store", "threads", "device"),
    )
)
"""Keys of config.json that may differ when a run is resumed."""


def check_resumable(out: Path, settings: RunSettings, data: FederatedData, simulation: Simulation) -> None:
    """Write config.json and clients.json.

    Raises:
        RunDirectoryError: if the directory belongs to another configuration.
    """
    config = {**settings.model_dump(mode="json", by_alias=True), **_facts(data, simulation)}
    path = out / "config.json"
    if path.exists():
        _compare(json.loads(path.read_text()), config, out)
    write_json(path, config)
    write_json(out / "clients.json", data.per_class())


def _compare(old: dict[str, Any], config: dict[str, Any], out: Path) -> None:
    # a key that an earlier version did not write yet is no difference while it says what that version did
    defaults = {name: field.default for name, field in RunSettings.model_fields.items()}
    for key in sorted((old.keys() | config.keys()) - VOLATILE):
        before, now = old.get(key, defaults.get(key)), config.get(key)
        if json.dumps(before) != json.dumps(now):
            raise RunDirectoryError(
                f"{out} holds a run with {key} = {before!r}, this one has {now!r}; "
                "choose another --out, or delete that directory to begin again"
            )


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
