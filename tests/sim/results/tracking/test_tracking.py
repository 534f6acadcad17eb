"""Callbacks and trackers hear what the run's files say, also when it was interrupted, and cannot break it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sim import simulate
from sim.cli.app import app
from sim.errors import SettingsError
from sim.results.run_directory import RunDirectory
from sim.results.tracking import RunCallback, final_scores, round_scores, trackers
from sim.scores.records import RoundRecord, Summary

SMALL: dict[str, Any] = {
    "data": "synthetic",
    "model": "har_cnn",
    "method": "fedavg",
    "rounds": 2,
    "scale": 0.2,
    "engine": "serial",
    "set": ["data.subjects=2", "data.phones=1", "data.minutes=1"],
}


class Recorder(RunCallback):
    """Writes down what it is called with."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._stop_after = stop_after

    def on_start(self, run: RunDirectory, rounds_done: int) -> None:
        self.calls.append(("start", rounds_done))

    def on_round(self, record: RoundRecord) -> None:
        self.calls.append(("round", record.round))
        if record.round == self._stop_after:
            raise KeyboardInterrupt

    def on_end(self, run: RunDirectory, summary: Summary) -> None:
        self.calls.append(("end", summary.rounds))

    def on_error(self, error: BaseException) -> None:
        self.calls.append(("error", type(error)))


class Broken(Recorder):
    """A tracker whose server is away."""

    def on_round(self, record: RoundRecord) -> None:
        super().on_round(record)
        raise ConnectionError("nobody there")


def test_a_callback_hears_an_interrupted_run_and_its_resumption(tmp_path: Path) -> None:
    first, second = Recorder(stop_after=1), Recorder()
    with pytest.raises(KeyboardInterrupt):
        simulate(tmp_path / "run", callbacks=[first], **SMALL)
    assert first.calls == [("start", 0), ("round", 1), ("error", KeyboardInterrupt)]
    simulate(tmp_path / "run", callbacks=[second], **SMALL)
    begun = second.calls[0][1]
    assert second.calls == [("start", begun), *(("round", n) for n in range(begun + 1, 3)), ("end", 2)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracking") / "run"


def test_a_failing_tracker_is_named_once_and_the_run_goes_on(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Broken] = []

    def make(_name: str, _out: Path) -> Broken:
        made.append(Broken())
        return made[0]

    monkeypatch.setattr("sim.results.tracking._tracker", make)
    with pytest.warns(UserWarning, match=r"--log mlflow failed and is off.*ConnectionError: nobody there") as caught:
        result = simulate(out, log=["mlflow"], **SMALL)
    assert len(caught) == 1
    assert made[0].calls == [("start", 0), ("round", 1)]
    assert result["rounds"] == 2


@pytest.mark.ci
def test_what_a_run_returns_is_what_its_files_say(out: Path) -> None:
    result = simulate(out, **SMALL)
    assert dict(result) == json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    frame = result.to_frame()
    assert list(frame.index) == [1, 2]
    assert list(frame["personalization_macro_f1"]) == [line["personalization"]["macro_f1"]["mean"] for line in lines]
    clients = result.clients_to_frame()
    scores = json.loads((out / "client_scores.json").read_text())
    assert list(clients["personalization_accuracy"]) == [
        scores[name]["validation"]["personalization"]["accuracy"] for name in clients.index
    ]
    assert "fedavg · har_cnn on synthetic" in repr(result)
    assert "<table>" in result._repr_html_()
    assert result.report().read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(("name", "words"), [("mlfow", "did you mean 'mlflow'"), ("excel", "there are mlflow")])
def test_an_unknown_tracker_is_refused_before_anything_is_read(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        trackers([name], tmp_path, warnings.warn)


@pytest.mark.ci
def test_json_alone_is_on_stdout(out: Path) -> None:
    words = [f"--{key}={value}" for key, value in SMALL.items() if key != "set"]
    words += [f"--set={each}" for each in SMALL["set"]]
    done = CliRunner().invoke(app, ["run", *words, f"--out={out}", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads((out / "summary.json").read_text())
    assert "Report:" in done.stderr


def test_tensorboard_reads_every_round_once_after_a_resumption(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install tensorboard: its files are read back with it")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        simulate(out, log=["tensorboard"], callbacks=[Recorder(stop_after=1)], **SMALL)
    result = simulate(out, log=["tensorboard"], **SMALL)
    read = EventAccumulator(str(out / "tensorboard")).Reload()
    for record in result.run.rounds:
        for name, value in round_scores(record):
            (event,) = [each for each in read.Scalars(name) if each.step == record.round]
            assert event.value == pytest.approx(value, rel=1e-6), name


@pytest.mark.filterwarnings("default")  # of what MLflow calls
def test_mlflow_has_one_run_of_an_interrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow: scores are read back from it")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)  # its artifacts
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        simulate(out, log=["mlflow"], callbacks=[Recorder(stop_after=1)], **SMALL)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("gaitway").experiment_id
    (run,) = client.search_runs(experiment)
    assert run.info.status == "KILLED"
    result = simulate(out, log=["mlflow"], **SMALL)
    (run,) = client.search_runs(experiment)
    assert run.info.status == "FINISHED"
    assert run.data.params["method"] == "fedavg"
    history = {each.step: each.value for each in client.get_metric_history(run.info.run_id, "train/loss")}
    assert history == {record.round: pytest.approx(record.train_loss) for record in result.run.rounds}
    assert result.run.summary is not None
    for name, value in final_scores(result.run.summary):
        assert run.data.metrics[name] == pytest.approx(value)
