"""The systemd unit, and what the agent tells systemd."""

from __future__ import annotations

import configparser
import os
import queue
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.config.settings import BrokerSection
from edge_agent.supervisor import drivers
from edge_agent.supervisor.drivers import Mailbox, ServiceManager, open_drivers
from edge_agent.supervisor.supervisor import Supervisor
from tests.edge_agent.factories import make_config

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "edge-agent.service"


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        yield listening


def heard(listening: socket.socket) -> list[str]:
    listening.setblocking(False)
    found = list[str]()
    while True:
        try:
            found.append(listening.recv(4096).decode())
        except BlockingIOError:
            return found


def test_a_supervisor_says_that_it_is_ready_alive_and_stopping(systemd: socket.socket, tmp_path: Path) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000000"}
    broker = BrokerSection(host="127.0.0.1", port=9)  # nobody listens there
    config = make_config(tmp_path / "device").model_copy(update={"broker": broker})
    mailbox: Mailbox = queue.SimpleQueue()
    drivers = open_drivers(config, mailbox.put, service_manager=ServiceManager(environment))
    supervisor = Supervisor(config, drivers, mailbox)
    threading.Timer(0.7, supervisor.stop).start()
    supervisor.run()
    said = heard(systemd)
    assert (said[0], said[-1]) == ("READY=1", "STOPPING=1")
    assert said.count("WATCHDOG=1") == 1
    away = "STATUS=collecting (waiting for the federation's announcement), without a connection"
    assert any(line.startswith(away) for line in said)


def test_it_says_that_it_is_alive_three_times_per_interval(
    systemd: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(drivers.time, "monotonic", lambda: clock[0])
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000000"})
    for clock[0] in (1000.0, 1019.0, 1020.0, 1021.0, 1040.0):
        manager.alive("idle")
    assert heard(systemd) == ["WATCHDOG=1", "STATUS=idle", "WATCHDOG=1", "WATCHDOG=1"]


def test_without_systemd_or_for_another_process_nothing_is_said(systemd: socket.socket, tmp_path: Path) -> None:
    here = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    others = {**here, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid() + 1)}
    for environment in ({}, here, others, {**here, "WATCHDOG_USEC": "soon"}):
        ServiceManager(environment).alive()
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready()
    ServiceManager({"NOTIFY_SOCKET": "elsewhere"}).ready()
    assert heard(systemd) == []


def test_the_unit_has_what_the_device_needs_and_no_more() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNIT)
    service = dict(unit["Service"])
    wanted = {
        "Type": "notify",
        "WatchdogSec": "60",
        "Restart": "on-failure",
        "OOMPolicy": "continue",
        "DynamicUser": "yes",
        "StateDirectory": "gaitway-edge",
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
    }
    assert {name: service[name] for name in wanted} == wanted
    assert {"MemoryMax", "CPUWeight"} <= service.keys()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    # the program is not installed here: any that exists will do
    text = UNIT.read_text().replace("/opt/gaitway/bin/python", "/bin/true")
    path = tmp_path / UNIT.name
    path.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
