"""What `doctor` finds on machines, networks and sensors that are well, and on those that are not."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from edge_agent.__main__ import app
from edge_agent.config.settings import load
from edge_agent.doctor import CheckResult, Level, machine, network
from edge_agent.doctor.network import check_broker
from edge_agent.doctor.sensors import check_motion, check_sensors, from_health
from edge_agent.sensors.source import SensorHealth
from edge_agent.storage.credentials import pin_server
from edge_agent.storage.state_store import FILE_NAME, StateStore
from har_pipeline import Recording
from tests.edge_agent.sensors.sensor_logger.phone import BEGAN_S, walk
from tests.edge_agent.sensors.test_app_export import as_folder, tables
from tests.edge_agent.sensors.test_iio import imu
from tests.ports import free_port

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
Levels = dict[str, Level]


def config_file(folder: Path, more: str = "", url: str = "http://127.0.0.1:9") -> Path:
    path = folder / "agent.toml"
    path.write_text(
        f'[agent]\ndevice = "d1"\nfederation = "demo"\ndata_dir = "data"\n[server]\nurl = "{url}"\n{more}',
    )
    path.chmod(0o600)
    return path


def levels(found: Iterator[CheckResult]) -> Levels:
    return {finding.check: finding.level for finding in found}


def the(found: list[CheckResult] | Iterator[CheckResult], check: str) -> CheckResult:
    return next(finding for finding in found if finding.check == check)


# ---- the machine


def test_a_broken_config_is_the_only_finding_and_exit_code_1(tmp_path: Path) -> None:
    path = config_file(tmp_path, "[sensors]\nsourze = 1\n")
    run = CliRunner().invoke(app, ["doctor", "--config", str(path), "--json"])
    found = json.loads(run.stdout)
    assert (run.exit_code, found["ok"], len(found["findings"])) == (1, False, 1)
    assert "did you mean 'source'" in found["findings"][0]["message"]


def test_a_password_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    path = config_file(tmp_path, '[broker]\nusername = "u"\npassword = "secret"\n')
    assert machine.config_file(path, load(path, {})).level is Level.OK
    path.chmod(0o644)
    found = machine.config_file(path, load(path, {}))
    assert (found.level, found.advice) == (Level.WARNING, f"chmod 600 {path}")


def test_disk_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(config_file(tmp_path), {})
    usage = shutil.disk_usage(tmp_path)
    for free, level in ((5e9, Level.OK), (5e8, Level.WARNING), (1e7, Level.FAILURE)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _path, free=free: usage._replace(free=int(free)))
        assert levels(machine.folder_and_disk(config)) == {"data folder": Level.OK, "disk": level}
    (tmp_path / "file").write_text("")
    elsewhere = config.agent.model_copy(update={"data_dir": tmp_path / "file" / "data"})
    (found,) = machine.folder_and_disk(config.model_copy(update={"agent": elsewhere}))
    assert (found.level, "cannot be written" in found.message) == (Level.FAILURE, True)


def test_a_broken_database_is_a_failure(tmp_path: Path) -> None:
    config = load(config_file(tmp_path), {})
    assert {finding.message for finding in machine.databases(config)} == {"not there yet"}
    StateStore(config.agent.data_dir).close()
    (config.agent.data_dir / "windows.sqlite").write_bytes(b"no database" * 1000)
    assert levels(machine.databases(config)) == {FILE_NAME: Level.OK, "windows.sqlite": Level.FAILURE}


def test_a_clock_of_the_past_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.clock().level is Level.OK
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    assert "1970" in machine.clock().message
    meminfo = tmp_path / "meminfo"
    for text, level in (
        ("MemAvailable: 900000 kB", Level.OK),
        ("MemAvailable: 90000 kB", Level.WARNING),
        ("", Level.WARNING),
    ):
        meminfo.write_text(text + "\n")
        assert machine.memory(meminfo).level is level


def test_a_python_without_torch_cannot_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(bare))
    found = machine.training_process()
    assert (found.level, "No module named 'torch'" in found.message) == (Level.FAILURE, True)


# ---- the network


class _Server(http.server.BaseHTTPRequestHandler):
    away_s = 0.0

    def do_GET(self) -> None:
        status = 200 if self.path == "/healthz" else 404
        self.send_response_only(status)
        self.send_header("Date", self.date_time_string(time.time() + self.away_s))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}"
    found.shutdown()
    found.server_close()


@pytest.mark.parametrize(("away_s", "level"), [(0, Level.OK), (-20, Level.WARNING), (3600, Level.FAILURE)])
def test_the_servers_clock_is_compared(
    tmp_path: Path, server: str, away_s: float, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Server, "away_s", away_s)
    found = list(network.check_server(load(config_file(tmp_path, url=server), {})))
    assert levels(iter(found)) == {
        "server: name": Level.OK,
        "server: port": Level.OK,
        "server": Level.OK,
        "clock: server": level,
    }
    assert ("behind" in found[-1].message) == (away_s > 0)


def test_each_step_towards_the_server_has_its_own_failure(tmp_path: Path, server: str) -> None:
    def last(url: str) -> CheckResult:
        return list(network.check_server(load(config_file(tmp_path, url=url), {})))[-1]

    assert last("http://no-such-host.invalid").check == "server: name"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert last(f"http://127.0.0.1:{closed.getsockname()[1]}").check == "server: port"
    assert last(server.replace("http:", "https:")).check == "server: TLS"
    assert "404" in last(server + "/below").message


@pytest.mark.service
@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
def test_the_broker_lets_in_whom_it_knows(tmp_path: Path) -> None:
    port, passwords = free_port(), tmp_path / "passwords"
    made = shutil.which("mosquitto_passwd") or shutil.which("mosquitto_passwd", path="/usr/bin:/usr/local/bin")
    if not made:
        pytest.skip("mosquitto_passwd is not installed")
    subprocess.run([made, "-c", "-b", passwords, "d1", "right"], check=True, capture_output=True)
    passwords.chmod(0o644)
    text = f"listener {port} 127.0.0.1\nallow_anonymous false\npassword_file {passwords}\n"
    (tmp_path / "m.conf").write_text(text + ("user root\n" if os.getuid() == 0 else ""))
    assert MOSQUITTO
    with subprocess.Popen([MOSQUITTO, "-c", tmp_path / "m.conf"], stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            for password, level, words in (("right", Level.OK, "accepts d1"), ("wrong", Level.FAILURE, "rejects d1")):
                more = f'[broker]\nhost = "127.0.0.1"\nport = {port}\nusername = "d1"\npassword = "{password}"\n'
                found = list(network.check_broker(load(config_file(tmp_path, more), {}), running=False))
                assert (found[-1].level, words in found[-1].message) == (level, True), found
            more = f'[broker]\nhost = "127.0.0.1"\nport = {port}\ntls = true\n'
            assert (
                list(network.check_broker(load(config_file(tmp_path, more), {}), running=False))[-1].check
                == "broker: TLS"
            )
        finally:
            process.kill()
    gone = load(config_file(tmp_path, f'[broker]\nhost = "127.0.0.1"\nport = {port}\n'), {})
    assert list(network.check_broker(gone, running=False))[-1].check == "broker: port"


# ---- sensors


def still(count: int = 500, gravity: float = 9.81, rotation: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    acc = np.array([0, 0, gravity]) + random.normal(0, 0.01, (count, 3))
    return acc, np.array([rotation, 0, 0]) + random.normal(0, 0.002, (count, 3))


@pytest.mark.parametrize("nothing", [np.empty((0, 3)), np.full((500, 3), np.nan)])
def test_a_gyroscope_that_gives_nothing_fails(nothing: np.ndarray) -> None:
    assert levels(check_motion(still()[0], nothing, 50.0)) == {"sensors": Level.FAILURE}


def moving() -> tuple[np.ndarray, np.ndarray]:
    acc, gyro = still()
    return acc + np.random.default_rng(1).normal(0, 3, acc.shape), 100 * gyro


@pytest.mark.parametrize(
    ("values", "rate_hz", "gravity", "gyroscope", "rate"),
    [
        (still(), 100.0, Level.OK, Level.OK, Level.OK),
        (still(gravity=1.0), 100.0, Level.FAILURE, Level.OK, Level.OK),
        (still(gravity=5.0), 100.0, Level.FAILURE, Level.OK, Level.OK),
        (still(rotation=0.5), 20.0, Level.OK, Level.WARNING, Level.WARNING),
        ((still()[0], np.zeros((500, 3))), 100.0, Level.OK, Level.WARNING, Level.OK),
        ((moving()[0], np.zeros((500, 3))), 100.0, Level.OK, Level.WARNING, Level.OK),
        (moving(), 100.0, Level.OK, Level.OK, Level.OK),
    ],
)
def test_sensors_in_rest_and_motion(values: Any, rate_hz: float, gravity: Level, gyroscope: Level, rate: Level) -> None:
    assert levels(check_motion(*values, rate_hz)) == {"gravity": gravity, "gyroscope": gyroscope, "rate": rate}


def heard(flip: float = 1.0) -> dict[str, Any]:
    """What an agent notes of a phone that lies flat for ten seconds."""
    health = SensorHealth("sensor_logger_http")
    acc, gyro = still()
    times_s = BEGAN_S + np.arange(500) / 100
    health.record(Recording("p", "s", "", "acc", times_s, flip * acc))
    health.record(Recording("p", "s", "", "gyro", times_s, gyro))
    return health.summary()


def test_a_phone_that_a_running_agent_hears() -> None:
    found = list(from_health(heard(), running=True))
    assert {finding.level for finding in found} == {Level.OK}
    assert "100 Hz" in the(found, "rate").message
    assert "at rest" in the(found, "gravity").message
    wrong = list(from_health(heard(-1.0), running=True))
    assert any("signs are wrong" in finding.message and "platform" in finding.advice for finding in wrong)
    silent = next(from_health(heard(), running=True, now=time.time() + 3600))
    assert (silent.level, "3600 s ago" in silent.message) == (Level.WARNING, True)


def test_a_phone_without_a_gyroscope_and_with_lost_messages() -> None:
    health = SensorHealth("sensor_logger_mqtt")
    health.counts = {"late": 120, "broken": 0}
    times_s, values = walk(10.0)
    health.record(Recording("p", "s", "", "acc", times_s, values["gravity"]))
    health.note("the other sensor is 31 s behind acc")
    found = list(from_health(health.summary(), running=True))
    assert any(each.level is Level.FAILURE and "no data from the gyroscope" in each.message for each in found)
    assert "120 late" in the(found, "samples").message
    assert any("31 s behind" in each.message for each in found)


def test_sources_that_can_be_looked_at_without_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.doctor.sensors.SECONDS", 0.2)
    imu(tmp_path / "iio")
    found = check_sensors(
        load(config_file(tmp_path, '[sensors]\nsource = "iio"\n[iio]\nroot = "iio"\n'), {}), running=False
    )
    constant = {"gyroscope": Level.WARNING}  # as the files of this IIO folder are
    assert levels(found) == dict.fromkeys(("sensors", "gravity", "rate"), Level.OK) | constant
    as_folder(tmp_path / "one", tables())
    more = '[sensors]\nsource = "app_export"\npath = "one"\n'
    assert levels(check_sensors(load(config_file(tmp_path, more), {}), running=False))["gravity"] is Level.OK
    (tmp_path / "walk.csv").write_text(
        "time,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z\n"
        + "".join(f"{n / 100 + 1000 * (n > 150)},0,0,1,0,0,0\n" for n in range(300))
    )
    (tmp_path / "data.toml").write_text(
        'time = "time"\nacceleration = "specific force"\nacc = { columns = ["acc_x", "acc_y", "acc_z"] }\n'
        'gyro = { columns = ["gyro_x", "gyro_y", "gyro_z"] }\n'
    )
    more = '[sensors]\nsource = "csv"\npath = "walk.csv"\ndescription = "data.toml"\n'
    found_csv = list(check_sensors(load(config_file(tmp_path, more), {}), running=False))
    assert "looks like g" in the(found_csv, "gravity").advice
    assert the(found_csv, "rate").message == "100 Hz"  # the pause of 1000 s within the file is none of it
    more = '[sensors]\nsource = "recording"\nclient = "nobody"\n'
    (failed,) = check_sensors(load(config_file(tmp_path, more), {}), running=False)
    assert (failed.level, "no client 'nobody'" in failed.message) == (Level.FAILURE, True)


def test_a_phone_that_nobody_has_heard(tmp_path: Path) -> None:
    more = '[sensors]\nsource = "sensor_logger_http"\n'
    (found,) = check_sensors(load(config_file(tmp_path, more), {}), running=False)
    assert (found.level, "GAITWAY_EDGE_PHONE_TOKEN" in found.advice) == (Level.FAILURE, True)
    (found,) = check_sensors(
        load(config_file(tmp_path, more + '[phone]\ntoken = "0123456789abcdef"\n'), {}), running=False
    )
    assert (found.level, "start the agent" in found.advice) == (Level.WARNING, True)


def test_the_whole_visit_of_a_device_whose_server_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "NEEDED", dict.fromkeys(("torch", "onnx"), "loaded = 'torch, not loaded here'"))
    with closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        more = f'[broker]\nhost = "127.0.0.1"\nport = {port}\n[sensors]\nclient = "s00_phone100-waist"\n'
        path = config_file(tmp_path, more, url=f"http://127.0.0.1:{port}")
        run = CliRunner().invoke(app, ["doctor", "--config", str(path)])
    assert run.exit_code == 1
    assert "failure  server: port" in run.stdout
    assert "failure  broker: port" in run.stdout
    assert "ok  training: Python" in run.stdout
    assert "recordings found" in run.stdout


def test_a_device_that_waits_for_its_approval_is_told_so_and_so_is_a_source_that_nobody_set(tmp_path: Path) -> None:
    config = load(config_file(tmp_path), {})
    config.agent.data_dir.mkdir()
    pin_server(config.agent.data_dir, "0" * 32)
    assert "hasn't approved this device yet" in the(check_broker(config, running=False), "broker").message
    assert "source isn't set" in the(check_sensors(config, running=False), "sensors").message
