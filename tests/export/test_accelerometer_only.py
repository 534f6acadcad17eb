"""Recordings without a gyroscope, from files to a federation, an exported model, and answers for an accelerometer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from export.__main__ import app as export
from export.runtime import Session
from sim.cli.app import app as sim
from tests.export.test_recognizer import GYROSCOPE

DESCRIPTION = """
files = '(?P<client>[a-z]+)_(?P<activity>[a-z]+)\\.csv'
time = { column = "t", unit = "ms" }
acceleration = "specific force"
acc = { columns = ["x", "y", "z"], unit = "g" }
labels = ["sitting", "walking"]
"""
RATE_HZ, SECONDS = 50, 240


def recorded(folder: Path, client: str, activity: str, seed: int, seconds: int = SECONDS) -> Path:
    """Gravity along z in g; who walks bounces twice a second by half of it."""
    times = np.arange(seconds * RATE_HZ) / RATE_HZ
    acc = np.random.default_rng(seed).normal([0, 0, 1], 0.02, size=(len(times), 3))
    acc[:, 2] += 0.5 * np.sin(4 * np.pi * times) * (activity == "walking")
    path = folder / f"{client}_{activity}.csv"
    np.savetxt(path, np.column_stack([1000 * times, acc]), "%.4f", ",", header="t,x,y,z", comments="")
    return path


def call(program: typer.Typer, *words: object) -> str:
    done = CliRunner(env={"COLUMNS": "300"}).invoke(program, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.ci
def test_a_model_of_described_accelerometers_answers_an_accelerometer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.reports.figures.run_figures.draw_run", lambda _run: None)
    data, described, out, model = (tmp_path / name for name in ("data", "data.toml", "run", "model.onnx"))
    data.mkdir()
    described.write_text(DESCRIPTION)
    for seed, client in enumerate(("ada", "bob")):
        for activity in ("sitting", "walking"):
            recorded(data, client, activity, seed)
    small = ("--model", "har_cnn", "--method", "fedavg", "--rounds", 3, "--cache", tmp_path / "cache", "--out", out)
    call(sim, "run", "--describe", described, "--data-root", data, *small)
    call(export, "onnx", "--checkpoint", out / "models" / "global.safetensors", "--out", model)
    spec = Session.load(model).metadata.input
    assert spec.masked == GYROSCOPE
    np.testing.assert_allclose(spec.mean[2], 9.80665, rtol=0.02)  # gravity, so the unit was taken
    new = tmp_path / "new"
    new.mkdir()
    for activity in ("sitting", "walking"):
        recorded(new, "eve", activity, 9, seconds=20)
    told = call(export, "recognize", model, new, "--describe", described)
    assert {word for word in told.split() if word in ("sitting", "walking")} == {"sitting", "walking"}
    for activity in ("sitting", "walking"):
        alone = call(export, "recognize", model, new / f"eve_{activity}.csv", "--describe", described)
        assert [line.split()[4] for line in alone.splitlines() if " to " in line] == [activity], alone
