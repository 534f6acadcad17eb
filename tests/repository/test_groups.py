"""Tests of one group run in one process of pytest-xdist: what shares a cluster, a server or recordings starts it once.

pytest 9.2.0 took that from pytest-xdist 3.8.0 without a word: three Ray clusters at once, and CI took twice as long.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os
from pathlib import Path
import pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_it(number):
    Path(__file__).with_name(os.environ["PYTEST_XDIST_WORKER"]).touch()
"""


@pytest.mark.ci
def test_a_group_runs_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "."]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout
    workers = [path.name for path in tmp_path.glob("gw*")]
    assert len(workers) == 1, f"{workers}: pytest-xdist's groups do not work with this pytest; see pyproject.toml"
