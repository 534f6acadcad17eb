"""The commands at work: a table is run cell by cell, resumed, rendered, and one of its cells made again."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim.cli.app import app
from sim.sweep.arena.measures import read_summaries
from tests.repository.imports import REPOSITORY

TABLE = """
title = "Tiny"
asks = "Does it run?"
seeds = [0]
baseline = "fedavg"
[options]
rounds = 1
"data.subjects" = 2
"data.phones" = 1
"data.places" = 1
"data.minutes" = 3
"model.channels" = [8, 8]
"model.feature_dim" = 16
[sets.synthetic]
[arms.fedavg]
method = "fedavg"
model = "har_cnn"
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/tiny.toml").write_text(TABLE)
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return tmp_path


@pytest.mark.daily
@pytest.mark.ci  # three runs in processes of their own
def test_a_table_is_run_once_rendered_and_replayed(checkout: Path) -> None:
    ran = CliRunner().invoke(app, ["arena", "run", "tiny"])
    assert ran.exit_code == 0, ran.output
    (found,) = read_summaries(checkout / "docs/results").values()
    assert found.rounds == 1
    assert found.data_sha256
    own, accuracy = (found.measures[name] for name in ("own", "own_accuracy"))
    assert own is not None
    assert accuracy is not None
    assert 0 < accuracy <= 1
    assert accuracy != own, "macro-F1 came as accuracy"
    path = checkout / "docs/results/synthetic.jsonl"
    stamp = path.stat().st_mtime_ns
    assert CliRunner().invoke(app, ["arena", "run", "tiny"]).exit_code == 0
    assert path.stat().st_mtime_ns == stamp, "it was run twice"
    assert CliRunner().invoke(app, ["arena", "render", "--check"]).exit_code == 1
    assert CliRunner().invoke(app, ["arena", "render"]).exit_code == 0
    assert CliRunner().invoke(app, ["arena", "render", "--check"]).exit_code == 0
    again = CliRunner().invoke(app, ["arena", "replay"])
    assert again.exit_code == 0, again.output
    assert "the same scores" in again.output
    wrong = json.loads(path.read_text())
    wrong["measures"]["own"] += 0.05
    path.write_text(json.dumps(wrong))
    assert CliRunner().invoke(app, ["arena", "replay"]).exit_code == 1


def forget(checkout: Path, key: str) -> None:
    """Delete a cell's summary."""
    path = checkout / "docs/results/synthetic.jsonl"
    lines = [line for line in path.read_text().splitlines() if json.loads(line)["key"] != key]
    path.write_text("".join(f"{line}\n" for line in lines))


PRETRAINED = """
[arms.linear]
method = "analytic"
model = "hart"
init = "pretrained:mae"
[pretraining.mae]
task = "masked_reconstruction"
method = "centralized"
model = "hart"
rounds = 1
"data.subjects" = 2
"data.phones" = 1
"data.places" = 1
"data.minutes" = 2
"model.blocks" = 1
"model.feature_dim" = 16
"model.mlp" = 16
"model.head_width" = 16
data = {synthetic = "synthetic"}
"""


@pytest.mark.ci  # four runs in processes of their own
def test_a_cell_that_starts_from_a_pretraining_brings_it_along(checkout: Path) -> None:
    table = TABLE.replace('"model.channels" = [8, 8]\n"model.feature_dim" = 16\n', "")
    small = PRETRAINED.partition('"model.blocks"')[2].partition("data =")[0]
    arm = PRETRAINED.replace("init =", f'"model.blocks"{small}init =')
    (checkout / "experiments/tiny.toml").write_text(table + arm)
    ran = CliRunner().invoke(app, ["arena", "run", "tiny", "--arm", "linear"])
    assert ran.exit_code == 0, ran.output
    found = read_summaries(checkout / "docs/results")
    (key,) = (key for key in found if "analytic" in key)
    printed = CliRunner().invoke(app, ["arena", "cell", key]).output.splitlines()
    assert [line.split()[2:4] for line in printed[:2]] == [["sim", "run"]] * 2
    (first,) = found.keys() - {key}
    assert f"--out RUNS/{first}" in printed[0]
    assert f"--init RUNS/{first}" in printed[1]
    shutil.rmtree(checkout / "runs")
    forget(checkout, key)
    assert CliRunner().invoke(app, ["arena", "run", "tiny", "--arm", "linear"]).exit_code == 0
    again = CliRunner().invoke(app, ["arena", "replay", key])
    assert again.exit_code == 0, again.output
    forget(checkout, first)
    drawn = CliRunner().invoke(app, ["arena", "replay", "--max-seconds", "1e6"])  # never one that starts from another
    assert drawn.exit_code == 2
    assert "no summary is of a run" in drawn.output


def test_a_slip_is_said_in_words(checkout: Path) -> None:
    slips = ((["tinny"], "tiny"), (["tiny", "--arm", "fedavgg"], "fedavg"), (["tiny", "--set", "x"], "synthetic"))
    for arguments, word in slips:
        failed = CliRunner().invoke(app, ["arena", "run", *arguments])
        assert failed.exit_code == 2
        assert word in failed.output


@pytest.mark.daily
@pytest.mark.ci
@pytest.mark.data
def test_a_cell_of_the_published_tables_comes_out_again(
    gaitway_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which one is drawn by the day, so that CI goes through them over time."""
    monkeypatch.chdir(REPOSITORY)
    arguments = ["--data-root", str(gaitway_data), "--cache", str(tmp_path), "--max-seconds", "10"]
    again = CliRunner().invoke(app, ["arena", "replay", *arguments, "--seed", str(date.today().toordinal())])
    assert again.exit_code == 0, again.output
