"""Bytes that nobody meant, against all that takes some from outside: no case is a crash, a hang or unbounded memory.

A few hundred cases a target by default. `-m slow` plays a million (GAITWAY_FUZZ says how many), each target in a
process of its own whose memory is bounded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzzing.play import CASE_CPU_S, MORE_BYTES, play
from tests.fuzzing.targets import SHARES, TARGETS

FEW = 300


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.ci if name == "recordings" else ()) for name in TARGETS]
)
def test_some_cases(name: str, tmp_path: Path) -> None:
    target = TARGETS[name](tmp_path)
    assert play(target, FEW, seed=0).cases == FEW
    assert sum(target.close().values()) >= FEW


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_million_cases_in_all(name: str) -> None:
    wanted = round(SHARES[name] * int(os.environ.get("GAITWAY_FUZZ", "1000000")))
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzzing.play", name, str(wanted), "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    played = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(played))
    assert played["cases"] == wanted
    assert played["slowest_s"] <= CASE_CPU_S
    assert played["grown_bytes"] <= MORE_BYTES
