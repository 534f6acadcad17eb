"""Every test of the phone's client that node runs: tests/phone/**/*.test.mjs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
NODE = 20
"""The first version whose global objects are those of browsers."""


def why_not() -> str:
    """Say why node cannot run them; empty where it can."""
    if not shutil.which("node"):
        return "no node on this machine: apt-get install nodejs"
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return "" if int(version[1:].partition(".")[0]) >= NODE else f"node is {version}; the tests need {NODE} or later"


def by_node(script: Path, request: Any) -> Any:
    """Run a script with a request on its standard input, and return its answer."""
    if reason := why_not():
        pytest.skip(reason)
    command = ["node", "--import", str(HERE / "register.mjs"), str(script)]
    ran = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


@pytest.mark.ci
def test_by_node() -> None:
    if reason := why_not():
        pytest.skip(reason)
    files = sorted(map(str, HERE.rglob("*.test.mjs")))
    command = ["node", "--import", str(HERE / "register.mjs"), "--test", "--test-reporter", "spec", *files]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
