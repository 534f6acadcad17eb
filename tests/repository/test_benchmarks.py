"""Benchmarks still run: each contestant that needs no other package plays a round of every work at a toy's size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.imports import REPOSITORY

HAR = '{"clients": 3, "mean": 20, "epochs": 1}'
PEERS = ("pfl", "pfl-processes", "flower")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("work", "options", "contestants"),
    [
        ("public", '{"clients": 6, "cohort": 3}', {"ours", "loop"}),
        ("har_cnn", HAR, {"ours", "loop", "limit"}),
        ("hart", HAR, {"ours", "loop", "limit"}),
        ("hart_alp", HAR, {"ours", "loop", "limit"}),
        ("tan", '{"clients": 3, "shots": 10}', {"ours", "ours-compiled", "loop"}),
    ],
)
def test_every_contestant_of_the_training_benchmark_plays(
    work: str, options: str, contestants: set[str], tmp_path: Path
) -> None:
    out = tmp_path / "rounds.json"
    left_out = [word for name in PEERS for word in ("--without", name)]
    words = [work, "--options", options, "--rounds", "1", "--repeats", "1", "--out", str(out), *left_out]
    script = str(REPOSITORY / "benchmarks" / "bench_training.py")
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=True)
    assert {row["contestant"] for row in json.loads(out.read_text())["rows"]} == contestants, done.stderr
