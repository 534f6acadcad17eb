"""The demo: it ends with a model that works for each device or fails, and on every way out it leaves no process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import psutil
import pytest

from tests.repository.imports import REPOSITORY

MARK = "GAITWAY_TEST_MARK"
SMALLEST = ("--devices", "2", "--rounds", "1")
ENOUGH = ("--rounds", "3")
"""After which the smallest demo ends with a model worth adopting."""
PATIENCE_S = 600.0
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


@pytest.mark.slow  # `.ci/run` runs the whole demo
@pytest.mark.service
def test_the_smallest_demo(tmp_path: Path, mark: str) -> None:
    learning = (*SMALLEST, *ENOUGH, "--min-f1", "40")
    process = demo(mark, *learning, *ANY_PORTS, "--out", str(tmp_path / "out"))
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert alive(mark) == []
    assert "finished, no round is open after round 3" in output
    assert re.search(r"MB sent by all devices *│ *\d\.\d\d │ *\d\.\d\d │", output), output
    assert str(tmp_path / "out") in output
    summaries = sorted((tmp_path / "out" / "demo").glob("*/summary.json"))
    assert len(summaries) == 2
    for path in summaries:
        model = json.loads(path.read_text())["model"]
        assert Path(model["path"]).is_file()
        assert model["path"] in output
        assert model["parity"]["max_abs_diff"] <= 1e-4


@pytest.mark.slow  # a whole federation
@pytest.mark.service
def test_a_federation_that_learns_too_little_fails_the_demo(tmp_path: Path, mark: str) -> None:
    process = demo(mark, *SMALLEST, "--min-f1", "100", *ANY_PORTS, "--out", str(tmp_path / "out"))
    output, _ = process.communicate()
    assert process.returncode == 1, output
    assert alive(mark) == []
    assert "The demo has failed" in output
    for device in ("s00_phone100-waist", "s00_phone200-waist"):
        reason = rf"{device} \(fedali, 1 rounds\): (macro-F1 [\d.]+, at least 100 needed|no model was adopted)"
        assert re.search(reason, output), output
        assert str(tmp_path / "out" / "logs" / f"demo-{device}.log") in output
    assert "More training is needed" in output
    assert "Traceback" not in output


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Heed SIGINT, which a shell sets to be ignored in what it runs in the background, in this process and below."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.ci
@pytest.mark.usefixtures("interruptible")
@pytest.mark.service
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    out = tmp_path / "out"
    for_phones = ("--phone", "--phone-port", "0", "--address", "127.0.0.1")
    process = demo(mark, *SMALLEST, *ANY_PORTS, *for_phones, "--out", str(out))
    deadline = time.monotonic() + PATIENCE_S
    while not any("edge_agent" in command for command in alive(mark)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    settings = tomllib.loads((out / "https" / "server.toml").read_text())
    trusted = ssl.create_default_context(cafile=str(out / "https" / "ca.pem"))
    url = f"https://127.0.0.1:{settings['https_port']}/v1/federations"
    key = (out / "server" / "operator.key").read_text().strip()
    statuses = [
        httpx.get(url, headers=headers, verify=trusted, trust_env=False, timeout=60).status_code
        for headers in ({}, {"Authorization": f"Bearer {key}"})
    ]
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert statuses == [401, 200]  # who comes by the network needs a key
    assert process.returncode == 130, output
    assert "Interrupted" in output
    assert re.search(r"^  http://127\.0\.0\.1:\d+/login/[A-Za-z0-9_-]{43}$", output, re.M), output
    assert alive(mark) == []


@pytest.mark.slow  # a whole federation
@pytest.mark.usefixtures("interruptible")
@pytest.mark.service
def test_everything_stays_until_it_is_interrupted(tmp_path: Path, mark: str) -> None:
    more = (*ENOUGH, "--min-f1", "40", "--keep-running", "--out", str(tmp_path / "out"))
    process = demo(mark, *SMALLEST, *ANY_PORTS, *more)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("  s00_phone200-waist: http") and any("stays until Ctrl-C" in one for one in lines):
            break
    pages = re.findall(r"http://127\.0\.0\.1:\d+/", "".join(lines[-3:]))
    assert len(pages) == 3, lines
    # the operator's page wants a login, a device's page on its own machine does not
    assert [wait_until_it_answers(page) for page in pages] == [401, 200, 200]
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, alive(mark)) == (0, []), output


def wait_until_it_answers(page: str) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return httpx.get(page, trust_env=False, timeout=60).status_code
        except httpx.ConnectError:
            assert time.monotonic() < deadline, page
            time.sleep(0.2)


@pytest.mark.ci
@pytest.mark.service
@pytest.mark.parametrize("option", ["--http-port", "--mqtt-port"])
def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path, mark: str, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = demo(mark, *SMALLEST, *ANY_PORTS, option, str(port), "--out", str(tmp_path / "out"))
        output, _ = process.communicate()
    assert process.returncode == 2
    assert f"port {port} on 127.0.0.1 is used" in output
    assert f"choose another with {option}" in output
    assert "Traceback" not in output
    assert not (tmp_path / "out").exists()


@pytest.mark.ci
def test_a_folder_without_recordings_is_said(tmp_path: Path, mark: str) -> None:
    process = demo(mark, *SMALLEST, *ANY_PORTS, "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    output, _ = process.communicate()
    assert process.returncode == 2
    assert f"none of motionsense, spsw was found below {tmp_path}" in output


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def importable(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules programs can run; signals are handled as before afterwards."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(MARK, mark)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)


def test_stubborn_programs_and_their_children_are_killed(
    importable: Path, mark: str, processes: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (importable / "stubborn.py").write_text(STUBBORN)
    killpg = os.killpg

    def impatiently(pid: int, number: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C once more, while the demo ends its programs
        killpg(pid, number)

    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    with processes.Programs(importable / "logs") as programs:
        programs.start("stubborn", "stubborn")
        while "up" not in (importable / "logs" / "stubborn.log").read_text():
            time.sleep(0.05)
        running = alive(mark)
        monkeypatch.setattr(os, "killpg", impatiently)
    assert len(running) == 2
    deadline = time.monotonic() + 5
    while alive(mark):
        assert time.monotonic() < deadline, "a program's child outlived it"


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit('the disk is full')", 1), ("print('bye')", 0)])
def test_a_program_that_ends_is_reported_with_the_end_of_its_log(
    importable: Path, processes: ModuleType, code: str, status: int
) -> None:
    (importable / "ending.py").write_text(code)
    with processes.Programs(importable / "logs") as programs:
        programs.start("ending", "ending")
        programs.started["ending"].wait()
        with pytest.raises(processes.DemoError, match=rf"(?s)ending ended with status {status}.*(disk is full|bye)"):
            programs.check()


def test_an_agent_may_end_once_its_federation_is_finished(importable: Path, processes: ModuleType) -> None:
    (importable / "agent.py").write_text("")
    with processes.Programs(importable / "logs") as programs:
        programs.start("agent", "agent", processes.UNTIL_FINISHED)
        programs.started["agent"].wait()
        programs.check()
