"""The command line: a run that is killed goes on, errors are one line that helps."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from har_pipeline.description import description_of, read_description
from sim.cli.app import app
from sim.cli.options import assignments
from sim.errors import SettingsError
from sim.reports.report import repeat_command
from sim.results.run_directory import RunDirectory
from sim.run import load_data, resolve, run
from tests.har_pipeline.description.made import sisfall
from tests.sim.small_runs import ALP, DATA, settings_for

ROUNDS = 4


def arguments(out: Path) -> list[str]:
    sets = [word for text in [*DATA, *ALP] for word in ("--set", text)]
    options = ["--model", "har_cnn_alp", "--method", "fedali", "--rounds", str(ROUNDS), "--lr", "2e-3", *sets]
    return ["run", *options, "--cache", str(out.parent / "cache"), "--checkpoint-every", "0", "--out", str(out)]


def numbers(out: Path) -> Any:
    """Everything of a run that does not depend on the clock."""
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    for record in [*lines, summary]:
        del record["seconds"]
    return lines, summary, json.loads((out / "client_scores.json").read_text())


@pytest.mark.ci
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
    run(settings, tmp_path / "whole", data=load_data(resolve(settings), None, tmp_path / "cache", None))
    assert numbers(killed) == numbers(tmp_path / "whole")
    assert (killed / "report.html").stat().st_size > 10_000
    assert (killed / "partition.png").stat().st_size > 1_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--model", "har_cnn", "--method", "fedali"],
            "fedali needs a model with ALP layers, such as hart_alp or har_cnn_alp",
        ),
        (["--data", "mnits"], "unknown data set 'mnits'; did you mean 'mnist'"),
        (
            ["--data", "mnist", "--model", "har_cnn"],
            "har_cnn is not for these data, whose examples are images (1, 28, 28); models",
        ),
        (
            ["--model", "dense"],
            "whose examples are windows (128, 6); models for classification that are: hart",
        ),
        (
            ["--method", "scaffold", "--optimizer", "adam"],
            "scaffold reads gradients off SGD's steps, not off adam's: choose",
        ),
        (
            ["--data", "ucihar", "--data-root", "nowhere", "--attackers", "0.3"],
            "--attackers 0.3: say with --attack what",
        ),
        (["--holdout", "leave-one-out"], "expected leave-subjects-out|leave-devices-out|leave-clients-out, a colon"),
        (
            ["--holdout", "leave-clients-out:1", "--set", "holdout.epochs=abc"],
            "epochs: expected a whole number",
        ),
        (["--set", "holdout.epochs=3"], "--set holdout.epochs needs --holdout"),
        (["--scale", "0"], "scale: expected more than 0 (got 0.0)"),
        (["--init", "nothing.safetensors"], "no such file; expected a checkpoint of `sim pretrain`"),
        (["--set", "partition.alpha=1"], "--set partition.alpha needs --partition"),
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


@pytest.mark.ci
def test_a_method_starts_with_an_optimizer_that_it_works_with_and_figures_may_wait(tmp_path: Path) -> None:
    sets = [word for text in [*DATA, *ALP] for word in ("--set", text)]
    words = ["run", "--method", "scaffold", "--model", "har_cnn_alp", "--rounds", "1", "--no-figures", *sets]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(
        app, [*words, "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 0, done.output
    assert "Optimizer: sgd, learning rate 0.1 (scaffold's default; change it with --optimizer and --lr)" in " ".join(
        done.output.split()
    )
    training = json.loads((tmp_path / "run" / "config.json").read_text())["training"]
    assert (training["optimizer"], training["lr"], training["momentum"]) == ("sgd", 0.1, 0.0)
    assert "data:image" not in (tmp_path / "run" / "report.html").read_text("utf-8")
    assert not list((tmp_path / "run").rglob("*.png"))
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 0
    assert "data:image" in (tmp_path / "run" / "report.html").read_text("utf-8")


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


DESCRIBED = """
files = '(?P<activity>D\\d+)_(?P<client>S[AE]\\d+)_(?P<session>R\\d+)\\.txt'
header = false
trailing = ";"
rate_hz = 200
acceleration = "specific force"
acc = { columns = [1, 2, 3], unit = "g", scale = 0.00390625 }
gyro = { columns = [4, 5, 6], unit = "deg/s", scale = 0.06103515625 }
labels = { names = ["walking", "sitting"], map = { D01 = "walking", D08 = "sitting" } }
"""


@pytest.mark.ci
def test_a_run_of_described_recordings_keeps_the_description_and_is_repeated_without_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.reports.figures.run_figures.draw_run", lambda _run: None)
    described, data, out = tmp_path / "data.toml", tmp_path / "data", tmp_path / "first"
    sisfall(data, count=4000)
    described.write_text(DESCRIBED)
    small = ["--model", "har_cnn", "--method", "fedavg", "--rounds", "1", "--cache", str(tmp_path / "cache")]
    where = ["--describe", str(described), "--data-root", str(data), "--set", "data.skip_lines=2", "--out", str(out)]
    done = CliRunner().invoke(app, ["run", *small, *where])
    assert done.exit_code == 0, done.output
    config = json.loads((out / "config.json").read_text())
    expected = read_description(described).model_copy(update={"skip_lines": 2})
    assert (config["dataset"], description_of(config["dataset_options"])) == ("described", expected)
    described.unlink()
    places = {"FOLDER": str(data), "DIR": str(tmp_path / "second")}
    words = shlex.split(repeat_command(RunDirectory(out).config))
    again = CliRunner().invoke(app, [places.get(word, word) for word in words[3:]])
    assert again.exit_code == 0, again.output
    first, second = (json.loads((tmp_path / name / "clients.json").read_text()) for name in ("first", "second"))
    assert first == second
    assert {client: counts["train"] > 0 for client, counts in first.items()} == {"SA03": True, "SE11": True}


def test_a_description_is_refused_beside_another_data_set_and_named_where_it_is_wrong(tmp_path: Path) -> None:
    path, out = tmp_path / "data.toml", ["--out", str(tmp_path / "run")]
    path.write_text(DESCRIBED.replace("trailing", "trialing"))
    wide = CliRunner(env={"COLUMNS": "300"})
    beside = wide.invoke(app, ["run", "--describe", str(path), "--data", "motionsense", *out])
    assert "leave out --data motionsense" in beside.output
    wrong = wide.invoke(app, ["run", "--describe", str(path), *out])
    assert (wrong.exit_code, "unknown key 'trialing'; did you mean 'trailing'" in wrong.output) == (2, True)


def test_scores_of_those_who_took_no_part_are_printed(tmp_path: Path) -> None:
    words = ["run", "--model", "har_cnn", "--method", "analytic", "--rounds", "1", "--holdout", "leave-subjects-out:1"]
    words += [*(word for text in DATA for word in ("--set", text)), "--cache", str(tmp_path / "cache")]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")], env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    printed = done.stdout[done.stdout.index("New clients, which took no part; each on its own test set") :]
    scores = json.loads((tmp_path / "run" / "summary.json").read_text())["new_clients"]["shots"]["0"]
    assert f"{100 * scores['macro_f1']['mean']:.2f} ± " in printed
