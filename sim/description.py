"""The description of a run in its directory, which says whether the same command resumes it."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from federation.methods import method_from_json, method_to_json
from federation.methods.fedali import GLOBAL, LOCAL
from sim.data.federated_data import FederatedData
from sim.errors import RunDirectoryError, SettingsError
from sim.experiment import Experiment
from sim.results.summary import write_json
from sim.run_options import ENVIRONMENT
from sim.simulation import Simulation

VOLATILE = ENVIRONMENT | {
    *("versions", "hardware", "parameters", "split_leaks", "findings", "partition_class_names", "data_sha256"),
}
"""Keys of config.json that may differ when a run is resumed."""
REPLACED = frozenset({"gradient_dissimilarity"})
"""Keys of earlier versions that no number of a model depends on."""


def write_description(out: Path, settings: Experiment, data: FederatedData, simulation: Simulation) -> None:
    """Write config.json, plan.json and clients.json.

    Raises:
        RunDirectoryError: if the directory belongs to another configuration.
    """
    config = {**settings.model_dump(mode="json", by_alias=True), **_facts(data, simulation, settings.device)}
    path = out / "config.json"
    if path.exists():
        _compare(_with_new_defaults(json.loads(path.read_text())), config, out)
    write_json(path, config)
    write_json(out / "plan.json", settings.plan_for(data).model_dump(mode="json"))
    write_json(out / "clients.json", data.per_class(simulation.task))


def _with_new_defaults(old: dict[str, Any]) -> dict[str, Any]:
    """Give a run of an earlier version the keys that settings have had since, whose defaults keep its meaning."""
    names = {field.alias or name for name, field in Experiment.model_fields.items()}
    try:
        settings = Experiment.model_validate({name: value for name, value in old.items() if name in names})
    except (ValidationError, SettingsError):
        return old  # of settings that this version does not have: the comparison says which
    method = method_to_json(method_from_json(settings.method))
    return {**old, **settings.model_dump(mode="json", by_alias=True), "method": method}


def _compare(old: dict[str, Any], config: dict[str, Any], out: Path) -> None:
    for key in sorted((old.keys() | config.keys()) - VOLATILE - REPLACED):
        before, now = old.get(key), config.get(key)
        if json.dumps(before) != json.dumps(now):
            raise RunDirectoryError(
                f"{out} holds a run with {key} = {before!r}, this one has {now!r}; "
                "choose another --out, or delete that directory to begin again"
            )


def _facts(data: FederatedData, simulation: Simulation, device: str) -> dict[str, Any]:
    initial = simulation.initial
    prototypes = sum(v.numel() for n, v in initial.buffers.items() if n.endswith((LOCAL, GLOBAL)))
    return {
        "split_leaks": data.split_leaks,
        "findings": data.findings,
        "partition_class_names": data.partition_class_names,
        "data_sha256": data.sha256(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "gaitway": _own_version(),
        },
        "hardware": _hardware(device),
        "parameters": {"trained": sum(v.numel() for v in initial.params.values()), "prototypes": prototypes},
    }


def _hardware(device: str) -> str:
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"  # other kernels round otherwise
    where = f"{processor}, {torch.get_num_threads()} torch threads, {platform.system()}"
    return f"{where}, {torch.cuda.get_device_name(device)}" if torch.device(device).type == "cuda" else where


def _own_version() -> str:
    try:
        return version("gaitway")
    except PackageNotFoundError:
        return "not installed"
