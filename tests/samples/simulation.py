"""A simulation's directory as a kill in its second round leaves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sim.data.federated_data import FederatedData
from sim.experiment import Experiment
from sim.results.summary import write_json
from sim.run import load_data, run
from tests.sim.small_runs import settings_for


class KilledError(Exception):
    """Ends a run as a kill would: nothing is written any more."""


def write(out: Path, scratch: Path) -> None:
    """Write run/: FedAli with int8 uploads, so that clients remember prototypes and residuals, after round 1 of 2."""
    settings = settings_for("fedali", batch=8, optimizer="sgd", lr=0.05, precision="int8")
    data = load_data(settings, None, scratch / "cache", None)
    interrupted(settings, data, out / "run")
    config = json.loads((out / "run" / "config.json").read_text())
    del config["code"]  # the digests of classes, which any edit of a method changes
    write_json(out / "run" / "config.json", config)


def interrupted(settings: Experiment, data: FederatedData, out: Path) -> None:
    """Run until the first client of round 2 has trained."""
    done: list[Any] = []

    def report(kind: str, what: dict[str, Any]) -> None:
        if kind == "round":
            done.append(what)
        elif kind == "client" and done:
            raise KilledError

    try:
        run(settings, data, out, checkpoint_every_s=0, report=report)
    except KilledError:
        return
    raise AssertionError("the run came to its end")
