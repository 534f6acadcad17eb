"""A worker of the tests that takes long to end says nothing about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import time
from tests.conftest import pytest_sessionfinish

class Large:
    def __del__(self):
        time.sleep(6)

def pytest_unconfigure(config):
    if hasattr(config, "workerinput"):
        Large()
"""


@pytest.mark.ci  # execnet waits for five seconds
def test_a_worker_that_ends_slowly_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    output = ended.stdout + ended.stderr
    assert (ended.returncode, "1 passed" in output) == (0, True), output
    assert "KeyboardInterrupt" not in output
