"""The command line: a run that is killed goes on, errors are one line that helps."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sim.cli.app import app
from sim.cli.options import assignments
from sim.errors import SettingsError
from sim.run import load_data, run
from tests.sim.small_runs import ALP, DATA, settings_for

ROUNDS = 4


def arguments(out: Path) -> list[str]:
    sets = [word for text in [*DATA, *ALP] for word in ("--set", text)]
    options = ["--model", "cnn_alp", "--method", "fedali", "--rounds", str(ROUNDS), "--lr", "2e-3", *sets]
    return ["run", *options, "--cache", str(out.parent / "cache"), "--checkpoint-every", "0", "--out", str(out)]


def numbers(out: Path) -> Any:
    """Everything of a run that does not depend on the clock."""
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    for record in [*lines, summary]:
        del record["seconds"]
    return lines, summary, json.loads((out / "client_scores.json").read_text())


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill -9 the command once two of four rounds are written, then give it again."""
    monkeypatch.setattr(
        "sim.reports.figures.run_figures.draw_run", lambda _run: None
    )  # most of the time, and tested elsewhere
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-m", "sim", *arguments(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    lines = killed / "rounds.jsonl"
    while not (lines.exists() and lines.read_text().count("\n") >= 2):
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "summary.json").exists(), "the run ended before it could be killed"

    again = CliRunner().invoke(app, arguments(killed))
    assert again.exit_code == 0, again.output
    settings = settings_for("fedali", rounds=ROUNDS)
    run(settings, load_data(settings, None, tmp_path / "cache", None), tmp_path / "whole")
    assert numbers(killed) == numbers(tmp_path / "whole")
    assert (killed / "report.html").stat().st_size > 10_000
    assert (killed / "partition.png").stat().st_size > 1_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "cnn", "--method", "fedali"], "fedali needs a model with ALP layers, such as hart_alp or cnn_alp"),
        (["--data", "mnits"], "unknown data set 'mnits'; did you mean 'mnist'"),
        (
            ["--data", "mnist", "--model", "cnn"],
            "cnn is not for these data, whose examples are images (1, 28, 28); models",
        ),
        (
            ["--model", "dense"],
            "dense is not for these data, whose examples are windows (128, 6); models that are: hart",
        ),
        (
            ["--method", "scaffold", "--optimizer", "adam"],
            "scaffold reads gradients off SGD's steps, not off adam's: choose",
        ),
        (["--holdout", "leave-one-out"], "expected leave-subjects-out|leave-devices-out|leave-clients-out, a colon"),
        (
            ["--holdout", "leave-clients-out:1", "--set", "holdout.epochs=abc"],
            "epochs: Input should be a valid integer",
        ),
        (["--set", "holdout.epochs=3"], "--set holdout.epochs: there is no --holdout to set it of"),
        (["--scale", "0"], "scale: Input should be greater than 0 (came: 0.0)"),
        (["--init", "nothing.safetensors"], "no such file; expected a checkpoint of `sim pretrain`"),
        (["--set", "partition.alpha=1"], "--set partition.alpha: there is no --partition to set it of"),
        (["--partition", "dirichlet", "--set", "partition.beta=1"], "unknown option of the partition dirichlet 'beta'"),
        (["--stragglers", "0.5", "--set", "model.2.dropout=0"], "model.2.…: expected the number of a model, 1 to 1"),
    ],
)
def test_errors_are_one_line_that_helps(words: list[str], message: str, tmp_path: Path) -> None:
    small = [word for text in DATA for word in ("--set", text)] if "--data" not in words else []
    cache = ["--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "run")]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["run", *small, *words, *cache])
    assert done.exit_code == 2, done.output
    assert message in done.output.replace("\n", " ")
    assert "Traceback" not in done.output


def test_a_method_starts_with_an_optimizer_that_it_works_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.reports.figures.run_figures.draw_run", lambda _run: None)
    sets = [word for text in [*DATA, *ALP] for word in ("--set", text)]
    words = ["run", "--method", "scaffold", "--model", "cnn_alp", "--rounds", "1", *sets]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(
        app, [*words, "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 0, done.output
    assert "Optimizer: sgd, learning rate 0.1 (scaffold's own; --optimizer and --lr say otherwise)" in " ".join(
        done.output.split()
    )
    training = json.loads((tmp_path / "run" / "config.json").read_text())["training"]
    assert (training["optimizer"], training["lr"], training["momentum"]) == ("sgd", 0.1, 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [("mu", "expected key=value"), ("nothing.x=1", "expected key=value or"), ("=3", "expected key=value")],
)
def test_bad_assignments_are_explained(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        assignments([text])


def test_assignments_are_json_or_text() -> None:
    found = assignments(["mu=0.5", "model.prototypes=[1, 2]", "rounds.late=next", "model.2.channels=[8,8]"])
    assert found["method"] == {"mu": 0.5}
    assert found["model"] == {"prototypes": [1, 2], "2.channels": [8, 8]}
    assert found["rounds"] == {"late": "next"}
