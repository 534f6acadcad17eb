"""A federation learns a number: from recordings to scores, an exported model and its answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

from export.onnx_export import ExportReport, export_onnx, metadata_of
from export.recognizer import Recognizer, Timeline
from export.runtime import ModelFileError, Session
from har_pipeline import ClientWindows, PipelineSettings, prepare, recordings
from models.checkpoint import load_checkpoint
from sim.cli.app import app
from sim.errors import SettingsError
from sim.run import load_data, resolve

DATA = ("--data", "synthetic", "--set", "data.subjects=3", "--set", "data.phones=1", "--set", "data.minutes=4")
LEARNT = ("--task", "regression", "--set", "task.center=80", "--set", "task.spread=60")
CNN = ("--model", "har_cnn", "--method", "fedavg", "--rounds", "3", "--epochs", "3")
NAME = "cadence (steps/min)"


def called(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.output + (str(done.exception) if done.exception else "")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("numbers") / "run"
    text = called("run", *DATA, *LEARNT, *CNN, "--out", out)
    assert (out / "summary.json").is_file(), text
    return out


@pytest.mark.ci
def test_the_federation_learns_how_fast_people_step(finished: Path) -> None:
    """Against the best constant answer, of some 55 steps a minute, and by the scores that the summary has."""
    summary = json.loads((finished / "summary.json").read_text())
    text = json.dumps(summary)
    assert '"mae"' in text
    rounds = [json.loads(line) for line in (finished / "rounds.jsonl").read_text().splitlines()]
    scores = rounds[-1]["global"]
    assert scores["mae"] < 25
    assert scores["r2"] > 0.7
    plan = json.loads((finished / "plan.json").read_text())
    assert (plan["labels"], plan["training"]["classes"]) == ([NAME], 1)
    assert (finished / "report.html").is_file()


class Exported(NamedTuple):
    """The federation's model as a file, what its export said, and the windows that it was tried on."""

    file: Path
    report: ExportReport
    windows: ClientWindows


@pytest.fixture(scope="module")
def exported(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    module, info = load_checkpoint(finished / "models" / "global.safetensors")
    windows = next(iter(prepare("synthetic", None, PipelineSettings(), options={"minutes": 2.0}).clients.values()))
    file = tmp_path_factory.mktemp("exported") / "model.onnx"
    report = export_onnx(
        module, file, metadata=metadata_of(info), examples=windows.x, labels=windows.number, int8=True, allow_few=True
    )
    return Exported(file, report, windows)


@pytest.mark.ci
def test_what_was_learnt_is_exported_and_says_numbers(exported: Exported) -> None:
    """The same windows, by ONNX Runtime alone: the answers are within the error that the run has measured."""
    session, report, windows = Session.load(exported.file), exported.report, exported.windows
    metadata = session.metadata
    assert (metadata.labels, metadata.measures) == ((NAME,), True)
    assert report.metric == "mae"
    found = session.predict(windows.x)
    assert found.numbers is not None
    assert np.abs(found.numbers - windows.number).mean() == pytest.approx(report.score, rel=1e-4)
    assert report.score is not None
    assert report.score < 30
    assert found.probabilities.shape == (len(windows), 0)
    assert found.labels[0] == f"{NAME}: {found.numbers[0]:.4g}"
    metadata.check()
    with pytest.raises(ModelFileError, match="labels"):
        type(metadata)(**{**vars(metadata), "labels": ("one", "two")}).check()


@pytest.mark.ci
def test_a_recording_becomes_a_time_line_of_numbers(exported: Exported) -> None:
    recognizer = Recognizer(Session.load(exported.file))
    lines, rows = Timeline((NAME,), per_window=False, as_json=False), Timeline((NAME,), per_window=False, as_json=True)
    said, records = [], []
    for part in recordings("synthetic", None, options={"subjects": 1, "phones": 1, "minutes": 1.0}):
        push = recognizer.push_acc if part.sensor == "acc" else recognizer.push_gyro
        for answer in push(part.times_s, part.values):
            assert answer.number is not None
            said += lines.add(answer)
            records += [json.loads(row) for row in rows.add(answer)]
    assert len(said) == len(records) > 15
    assert NAME in said[0]
    assert "%" not in said[0]
    assert records[0]["label"] == f"{NAME}: {records[0]['number']:.4g}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data", "ucihar", "--task", "regression"), "learns a number per example, but ucihar has none"),
        (("--data", "synthetic_logistic", "--model", "logistic", "--task", "regression"), "one class per example"),
        ((*DATA, *LEARNT, "--method", "fedproto"), "regression has no classes"),
        ((*DATA, *LEARNT, "--labelled-per-class", "3"), "regression uses none"),
        ((*DATA, "--task", "regression", "--set", "task.spread=0"), "a spread above 0"),
    ],
)
def test_what_cannot_be_learnt_is_refused_in_words(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    output = " ".join(called("run", *words, "--rounds", "1", "--out", tmp_path / "run").split())
    assert said in output
    assert "Traceback" not in output


def test_a_scale_that_does_not_fit_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_given: object, **_more: object) -> None:
        raise SettingsError("it would train now")

    monkeypatch.setattr("sim.run.play_rounds", begin)
    text = " ".join(called("run", *DATA, "--task", "regression", "--model", "har_cnn", "--out", tmp_path).split())
    said, _, after = text.partition("training will be slow or fail; set task.center=")
    assert said
    assert "it would train now" in after


@pytest.mark.ci
def test_partitions_deal_by_activity_and_hold_numbers(finished: Path) -> None:
    from sim.results.run_directory import RunDirectory

    data = load_data(resolve(RunDirectory(finished).config), None, None, None)
    assert data.labels == (NAME,)
    assert data.partition_labels == ("sitting", "standing", "walking", "climbingup", "climbingdown", "running")
    client = next(iter(data.clients.values()))
    assert client.train.y.is_floating_point()
    assert client.partition_classes is not None
    assert len(client.partition_classes.train) == len(client.train.y)
    still = client.partition_classes.train < 2
    assert float(client.train.y[still].median()) == 0 < 80 < float(client.train.y[~still].median())
