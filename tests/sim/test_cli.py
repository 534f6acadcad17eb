"""The command line, in processes of its own: a run that is killed goes on, errors are one line that helps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sim.errors import SettingsError
from sim.options import assignments
from tests.sim.small_runs import ALP, DATA

ROUNDS = 4


def command(out: Path) -> list[str]:
    sets = [word for text in [*DATA, *ALP] for word in ("--set", text)]
    options = ["--data", "synthetic", "--model", "cnn_alp", "--method", "fedali", "--rounds", str(ROUNDS), *sets]
    cache = ["--cache", str(out.parent / "cache"), "--checkpoint-every", "0"]
    return [sys.executable, "-m", "sim", "run", *options, *cache, "--out", str(out)]


def numbers(out: Path) -> Any:
    """Everything of a run that does not depend on the clock."""
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    for record in [*lines, summary]:
        del record["seconds"]
    return lines, summary, json.loads((out / "client_scores.json").read_text())


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    """Kill -9 once two of four rounds are written; what was and what was not in a checkpoint are played again."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole), check=True, capture_output=True)
    process = subprocess.Popen(command(killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = killed / "rounds.jsonl"
    while not (lines.exists() and lines.read_text().count("\n") >= 2):
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "summary.json").exists(), "the run ended before it could be killed"
    subprocess.run(command(killed), check=True, capture_output=True)
    assert numbers(killed) == numbers(whole)
    assert (killed / "report.html").stat().st_size > 10_000


def test_errors_are_one_line_that_helps(tmp_path: Path) -> None:
    wrong = [sys.executable, "-m", "sim", "run", "--method", "fedali", "--model", "cnn", "--out", str(tmp_path)]
    wrong += [word for text in DATA for word in ("--set", text)]
    done = subprocess.run(wrong, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 2
    assert "fedali needs a model with ALP layers, such as hart_alp or cnn_alp" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


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
