"""A run as MLflow's, at the server of `MLFLOW_TRACKING_URI`, in the experiment of `MLFLOW_EXPERIMENT_NAME`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from gaitway.files import write_file
from sim.experiment.settings import OPTIONS
from sim.results.run_directory import RunDirectory
from sim.results.tracking import RunCallback, final_scores, round_scores
from sim.scores.records import RoundRecord, RunConfig, Summary

FILE = "mlflow.json"
"""In the run's directory: the id of MLflow's run, so that a resumed run goes on in it."""
EXPERIMENT = "gaitway"
MAX_PARAM_CHARS = 500


class MlflowTracker(RunCallback):
    """Writes the options as parameters, each round's scores as metrics, and the summary as an artifact."""

    def __init__(self, out: Path) -> None:
        self._out, self._client, self._run_id = out, MlflowClient(), ""

    def on_start(self, run: RunDirectory, rounds_done: int) -> None:
        """Begin a run of MLflow, or go on in that of an interrupted run."""
        known = self._find_run_id()
        if known:
            self._run_id = known
            self._client.update_run(known, status="RUNNING")
            return
        tags = {"mlflow.runName": run.path.name, "gaitway.data_sha256": run.config.data_sha256 or ""}
        created = self._client.create_run(self._experiment_id(), tags=tags)
        self._run_id = created.info.run_id
        write_file(self._out / FILE, (json.dumps({"run_id": self._run_id}) + "\n").encode())
        self._client.log_batch(self._run_id, params=list(_parameters(run.config)))

    def on_round(self, record: RoundRecord) -> None:
        """Write a round's scores."""
        self._log(round_scores(record), record.round)

    def on_end(self, run: RunDirectory, summary: Summary) -> None:
        """Write the scores of the round that counts, and end the run."""
        self._log(final_scores(summary), summary.rounds)
        self._client.log_batch(self._run_id, tags=[RunTag("gaitway.round", str(_counted(summary)))])
        for name in ("config.json", "plan.json", "summary.json"):
            self._client.log_artifact(self._run_id, str(run.path / name))
        self._client.set_terminated(self._run_id, "FINISHED")

    def on_error(self, error: BaseException) -> None:
        """End the run as killed or failed; it can go on."""
        if self._run_id:
            self._client.set_terminated(self._run_id, "FAILED" if isinstance(error, Exception) else "KILLED")

    def _log(self, scores: Iterable[tuple[str, float]], step: int) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self._run_id, [Metric(name, value, now, step) for name, value in scores])

    def _experiment_id(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _find_run_id(self) -> str | None:
        """Return the run that this directory began, unless this MLflow does not have it."""
        try:
            run_id = str(json.loads((self._out / FILE).read_text("utf-8"))["run_id"])
            self._client.get_run(run_id)
        except (OSError, ValueError, KeyError, TypeError, MlflowException):
            return None
        return run_id


def _parameters(config: RunConfig) -> Iterable[Param]:
    for name, option in OPTIONS.items():
        if option.affects != "environment":
            yield Param(name, str(option.value(config))[:MAX_PARAM_CHARS])
    for name, value in config.method.items():
        if name != "name":
            yield Param(f"method.{name}", str(value)[:MAX_PARAM_CHARS])


def _counted(summary: Summary) -> int:
    chosen = summary.selected(summary.trusted)
    return chosen.round if chosen else summary.rounds
