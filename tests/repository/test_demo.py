"""The demo: it ends with a model for each device, and on every way out it leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

import har_pipeline
from edge_agent.config import load
from federation.plan import Plan
from tests.repository.imports import REPOSITORY

MARK = "GAITWAY_TEST_MARK"
SMALLEST = ("--devices", "2", "--rounds", "1", "--epochs", "1", "--model", "cnn_alp", "--minutes", "1.5")
ANY_PORTS = ("--http-port", "0", "--mqtt-port", "0")


def demo(mark: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(REPOSITORY / "demo" / "run.py"), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, MARK: mark, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def alive(mark: str) -> list[str]:
    """Command lines of the processes that inherited the mark, whatever group or parent they have now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue  # it ended meanwhile, or is not ours to look at
    return found


@pytest.fixture
def mark() -> Iterator[str]:
    value = uuid.uuid4().hex
    yield value
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == value:
                process.kill()
        except psutil.Error:
            continue


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "demo"))
    import processes

    return processes


@pytest.mark.slow  # `.ci/run` runs the whole demo
@pytest.mark.service
def test_the_smallest_demo(tmp_path: Path, mark: str) -> None:
    process = demo(mark, *SMALLEST, *ANY_PORTS, "--out", str(tmp_path / "out"), "--timeout-s", "240")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert alive(mark) == []
    assert "published" in output
    assert str(tmp_path / "out") in output
    summaries = sorted((tmp_path / "out" / "devices").glob("*/summary.json"))
    assert len(summaries) == 2
    for path in summaries:
        model = json.loads(path.read_text())["model"]
        assert Path(model["path"]).is_file()
        assert model["path"] in output
        assert model["parity"]["max_abs_diff"] <= 1e-4


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Heed SIGINT, which a shell sets to be ignored in what it runs in the background, in this process and below."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.service
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    process = demo(mark, *SMALLEST, *ANY_PORTS, "--out", str(tmp_path / "out"))
    deadline = time.monotonic() + 60
    while not any("edge_agent" in command for command in alive(mark)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "Interrupted" in output
    assert alive(mark) == []


@pytest.mark.service
@pytest.mark.parametrize("option", ["--http-port", "--mqtt-port"])
def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path, mark: str, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = demo(mark, *SMALLEST, *ANY_PORTS, option, str(port), "--out", str(tmp_path / "out"))
        output, _ = process.communicate()
    assert process.returncode == 1
    assert f"Port {port} on 127.0.0.1" in output
    assert f"choose another with {option}" in output
    assert "Traceback" not in output
    assert not (tmp_path / "out").exists()


def test_a_folder_without_recordings_is_said(tmp_path: Path, mark: str) -> None:
    process = demo(mark, *SMALLEST, *ANY_PORTS, "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    output, _ = process.communicate()
    assert process.returncode == 1
    assert f"none of spsw, motionsense was found below {tmp_path}" in output


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


def test_stubborn_children_and_their_strays_are_killed(
    tmp_path: Path, mark: str, processes: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    environment = {"PYTHONPATH": str(tmp_path), MARK: mark}
    with processes.Children(tmp_path / "logs") as children:
        child = children.start("stubborn", "stubborn", environment=environment)
        while "up" not in child.last_words():
            time.sleep(0.05)
        assert len(alive(mark)) == 2
    assert alive(mark) == []


def test_a_failing_child_is_reported_with_its_last_words(tmp_path: Path, processes: ModuleType) -> None:
    (tmp_path / "failing.py").write_text("raise SystemExit('the disk is full')")
    with processes.Children(tmp_path / "logs") as children:
        child = children.start("failing", "failing", environment={"PYTHONPATH": str(tmp_path)})
        child.process.wait()
        with pytest.raises(processes.DemoError, match=r"(?s)failing ended with status 1.*the disk is full"):
            children.check(may_end=[child])


def test_the_example_files_of_the_readme_fit_each_other() -> None:
    federation = json.loads((REPOSITORY / "demo" / "federation.json").read_text())
    plan = Plan.model_validate(federation["plan"])
    config = load(REPOSITORY / "demo" / "agent.toml", {})
    assert config.agent.federation == federation["name"]
    assert plan.labels == har_pipeline.dataset_labels(config.sensors.dataset, config.sensors.options)
