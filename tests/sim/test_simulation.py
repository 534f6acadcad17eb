"""The rounds of a run: engines agree, a killed run goes on to the same numbers, scores are what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from federation.methods import METHODS
from federation.scores import scores_of
from federation.tree import flatten
from sim import checkpoint
from sim.data import FederatedData
from sim.engines import Stacked
from sim.errors import RunDirectoryError, SettingsError
from sim.evaluation import spread
from sim.options import assignments, run_settings
from sim.presets import with_defaults
from sim.run import build_simulation, load_data, run
from sim.settings import RunSettings

SMALL = ["data.subjects=2", "data.phones=1", "data.places=1", "data.minutes=3", "model.channels=[8,8]"]


def settings_for(method: str = "fedavg", **options: Any) -> RunSettings:
    """Settings of a small run on generated recordings."""
    from har_pipeline import dataset_labels

    given = {
        "method": method,
        "model": "cnn_alp",
        "rounds": 3,
        "lr": 2e-3,
        "set": [*SMALL, "model.prototypes=[16]"],
        **options,
    }
    return run_settings(with_defaults(None, given), dataset_labels("synthetic", assignments(SMALL)["data"]), None)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FederatedData:
    return load_data(settings_for(), None, tmp_path_factory.mktemp("cache"), None)


@pytest.mark.parametrize("method", METHODS)
def test_engines_give_the_same_numbers(method: str, data: FederatedData) -> None:
    # SGD: Adam would blow the rounding of gradients that are truly zero up to whole steps
    settings = settings_for(method, optimizer="sgd", lr=0.05)
    serial, stacked = build_simulation(settings, data), build_simulation(settings, data)
    stacked.engine = Stacked(chunk=2)
    for one, other in zip(serial.play(), stacked.play(), strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
    first, second = flatten(serial.state), flatten(stacked.state)
    assert list(first) == list(second)
    for name in first:
        assert torch.allclose(first[name], second[name], atol=1e-5), name


def test_one_seed_repeats_a_run_and_another_does_not(data: FederatedData) -> None:
    def losses(seed: int) -> list[float]:
        return [record["train_loss"] for record in build_simulation(settings_for(seed=seed), data).play()]

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_scores_of_a_run_are_those_of_its_models(data: FederatedData, tmp_path: Path) -> None:
    settings = settings_for("fedali")
    summary = run(settings, data, tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    means = [record["personalization"]["macro_f1"]["mean"] for record in records]
    assert summary["best_round"] == int(np.argmax(means)) + 1
    assert summary["personalization"]["macro_f1"]["mean"] == max(means)
    again = build_simulation(settings, data)
    again.restore(checkpoint.load(tmp_path / "run" / "checkpoint.bin", "cpu"))  # type: ignore[arg-type]
    general = again.generalization()
    assert spread(general) == summary["generalization"]
    assert sum(int(matrix.sum()) for matrix in general.values()) == len(general) * len(data.union_test().y)
    matrix = again.global_matrix()
    assert matrix is not None
    assert scores_of(matrix).macro_f1 == summary["global_at_last_round"]["macro_f1"]


def test_bytes_are_what_the_method_shares(data: FederatedData) -> None:
    def bytes_up(method: str) -> int:
        return int(next(build_simulation(settings_for(method), data).play())["bytes_up"])

    parameters = sum(v.nbytes for v in build_simulation(settings_for(), data).initial.params.values())
    assert bytes_up("local") == 0
    assert bytes_up("fedavg") == parameters
    assert bytes_up("fedali") == parameters + 16 * 192 * 4


def test_a_directory_keeps_to_its_settings(data: FederatedData, tmp_path: Path) -> None:
    run(settings_for(rounds=1), data, tmp_path)
    with pytest.raises(RunDirectoryError, match=r"holds a run with task = .*choose another --out"):
        run(settings_for(rounds=1, lr=0.5), data, tmp_path)


def test_a_damaged_checkpoint_is_refused(data: FederatedData, tmp_path: Path) -> None:
    run(settings_for(rounds=1), data, tmp_path)
    path = tmp_path / "checkpoint.bin"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(RunDirectoryError, match=r"checkpoint.bin is damaged .* delete it"):
        run(settings_for(rounds=1), data, tmp_path)


def test_spread_is_over_clients_with_examples() -> None:
    perfect, useless = np.diag([2, 2]), np.array([[0, 2], [2, 0]])
    spread_ = spread({"a": perfect, "b": useless, "c": np.zeros((2, 2), np.int64)})
    assert spread_["accuracy"] == {"mean": 0.5, "std": 0.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [("mu", "expected key=value"), ("nothing.x=1", "expected key=value or"), ("=3", "expected key=value")],
)
def test_bad_assignments_are_explained(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        assignments([text])


def test_assignments_are_json_or_text() -> None:
    found = assignments(["mu=0.5", "model.prototypes=[1, 2]", "rounds.late=next"])
    assert found["method"] == {"mu": 0.5}
    assert found["model"] == {"prototypes": [1, 2]}
    assert found["rounds"] == {"late": "next"}


# ---- the command line, in processes of its own


def command(out: Path, *more: str) -> list[str]:
    sets = [word for text in [*SMALL, "model.prototypes=[16]"] for word in ("--set", text)]
    options = ["--data", "synthetic", "--model", "cnn_alp", "--method", "fedali", "--rounds", "8", *sets]
    cache = ["--cache", str(out.parent / "cache"), "--checkpoint-every", "0"]
    return [sys.executable, "-m", "sim", "run", *options, *cache, "--out", str(out), *more]


def numbers(out: Path) -> Any:
    """Everything of a run that does not depend on the clock."""
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    for record in [*lines, summary]:
        del record["seconds"]
    return lines, summary, json.loads((out / "client_scores.json").read_text())


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole), check=True, capture_output=True)
    kills = 0
    for wanted in (2, 5):  # kill -9 once so many rounds are written
        process = subprocess.Popen(
            command(killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        lines = killed / "rounds.jsonl"
        while process.poll() is None:
            if lines.exists() and lines.read_text().count("\n") >= wanted:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.002)
        process.wait()
    assert kills == 2, "the run ended before it could be killed"
    assert not (killed / "summary.json").exists()
    subprocess.run(command(killed), check=True, capture_output=True)
    assert numbers(killed) == numbers(whole)
    assert (killed / "report.html").stat().st_size > 10_000


def test_errors_are_one_line_that_helps(tmp_path: Path) -> None:
    wrong = [sys.executable, "-m", "sim", "run", "--method", "fedali", "--model", "cnn", "--out", str(tmp_path)]
    done = subprocess.run(wrong, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 2
    assert "fedali needs a model with ALP layers, such as hart_alp or cnn_alp" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
