"""The documents' commands, run as they are written, one document after the other in a copy of the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.document_blocks import shell_blocks
from sim import simulate
from sim.errors import SettingsError
from tests.repository.imports import PACKAGES, REPOSITORY
from tests.repository.test_documents import DOCUMENTS, RUN_BY, RUN_HERE

HERE = [file for file in DOCUMENTS if RUN_BY.get(file.name) == RUN_HERE]


IN_CI = ("inference.md",)
"""Those that take little more than half a minute; the demo trains devices in CI, too."""


def _marks(file: Path) -> list[pytest.MarkDecorator]:
    alone = [pytest.mark.xdist_group("ray")] if file.name == "compare-runs.md" else []
    return [pytest.mark.ci if file.name in IN_CI else pytest.mark.slow, *alone]


@pytest.mark.service
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "file",
    [pytest.param(one, marks=_marks(one), id=one.name) for one in HERE],
)
def test_a_documents_commands_work_in_their_order(file: Path, tmp_path: Path) -> None:
    shell = _shell()
    for name in (*PACKAGES, "demo", "docs", "deploy"):  # with what is compiled, which a dozen programs then need not do
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    blocks = [block for block in shell_blocks(file) if not block.not_run]
    assert blocks
    script = tmp_path / "document.sh"
    script.write_text("set -euo pipefail\n" + "\n".join(f"echo '== {one.name}'\n{one.text}" for one in blocks) + "\n")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": programs,
        "PYTHONPATH": str(tmp_path),
        "GAITWAY_EDGE_CONDITIONS_IGNORE": '["all"]',
    }
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(
            [*shell, str(script)], cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = running.wait(1740)
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):  # what the document started in the background
                try:
                    os.killpg(running.pid, number)
                except ProcessLookupError:
                    break
                if number is signal.SIGTERM:
                    subprocess.run(["sleep", "3"], check=True)
    assert code == 0, (tmp_path / "log").read_text()[-6000:]
    if file.name == "your-data.md":
        _assert_learnt(tmp_path)


def _assert_learnt(folder: Path) -> None:
    """What the page promises: good scores in the simulation, and on the device a good model in use."""
    scores = json.loads((folder / "runs/chest/summary.json").read_text())
    assert scores["personalization"]["macro_f1"]["mean"] > 0.9
    device = json.loads((folder / "device12/state/summary.json").read_text())
    assert {each["source"] for each in device["compared"]["models"]} == {"personalized", "midway", "global"}
    assert device["model"]["score"] > 0.9
    best = max(each["score"] for each in device["compared"]["models"])
    assert device["model"]["score"] >= best - 0.05


def _shell() -> list[str]:
    """A shell that sees a network and processes of its own, where this user may make one; else ports must be free.

    `ray stop`, with which a document ends, kills every Ray process that it sees: also those of another test.
    """
    if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip"):
        own = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return ["unshare", *own, "bash", "-c", 'ip link set lo up && exec bash "$0"']
    for port in (1883, 8080):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is taken on this machine")
    return ["bash"]


@pytest.mark.ci
def test_the_example_in_python_runs_as_it_is_written(tmp_path: Path) -> None:
    example, *_ = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/compare-runs.md").read_text(), re.S)
    assert len(example.splitlines()) <= 10
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    said = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr[-2000:]
    assert [line.partition(":")[0] for line in said.stdout.splitlines()] == ["local", "fedavg", "fedali"]


def test_an_option_that_is_unknown_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown option 'round'; the options are .*rounds"):
        simulate(tmp_path, data="synthetic", round=3)
