"""A simulation's directory as a kill in its second round leaves it."""

from __future__ import annotations

import json
from pathlib import Path

from gaitway.files import write_json
from sim.data.federated_data import FederatedData
from sim.experiment.settings import Experiment
from sim.results.tracking import RunCallback
from sim.run import Places, load_data, resolve, run
from sim.scores.records import RoundRecord
from tests.sim.small_runs import settings_for


class KilledError(Exception):
    """Ends a run as a kill would: nothing is written any more."""


def write(out: Path, scratch: Path) -> None:
    """Write run/: FedAli with int8 uploads, so that clients remember prototypes and residuals, after round 1 of 2."""
    settings = settings_for("fedali", batch=8, optimizer="sgd", lr=0.05, precision="int8")
    data = load_data(resolve(settings), None, scratch / "cache", None)
    interrupted(settings, data, out / "run")
    config = json.loads((out / "run" / "config.json").read_text())
    del config["code"]  # the digests of classes, which any edit of a method changes
    write_json(out / "run" / "config.json", config)


def interrupted(settings: Experiment, data: FederatedData, out: Path) -> None:
    """Run until the first client of round 2 has trained."""
    done: list[RoundRecord] = []

    class Killer(RunCallback):
        def on_round(self, record: RoundRecord) -> None:
            done.append(record)

        def on_client(self, client_id: str) -> None:
            if done:
                raise KilledError

    try:
        run(settings, out, [Killer()], data=data, places=Places(checkpoint_every_s=0))
    except KilledError:
        return
    raise AssertionError("the run came to its end")
