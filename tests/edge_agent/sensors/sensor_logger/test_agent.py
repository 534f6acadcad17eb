"""A real agent process that a phone records to, without a broker: over a full disk, and through kill −9."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edge_agent.__main__ import app
from edge_agent.machine.state import identity
from edge_agent.sensors.sensor_logger.inbox import PATH
from edge_agent.storage.repair import open_checked
from edge_agent.storage.state_store import StateStore
from har_pipeline import dataset_labels
from tests.edge_agent.factories import announcement, make_plan
from tests.edge_agent.sensors.sensor_logger.phone import annotation, bodies, entries, messages, walk
from tests.edge_agent.sensors.sensor_logger.test_http import TOKEN, post
from tests.edge_agent.storage.test_durability import REPOSITORY, fill, small_disk
from tests.ports import free_port

__all__ = ["small_disk"]
pytestmark = [pytest.mark.service, pytest.mark.slow]
LABEL = dataset_labels("synthetic")[0]


class Device:
    """An agent whose broker is away, and its person."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.config = folder / "agent.toml"
        self.config.write_text(
            f'[agent]\ndevice = "d1"\nfederation = "demo"\ndata_dir = "data"\n[server]\nurl = "http://127.0.0.1:9"\n'
            '[broker]\nhost = "127.0.0.1"\n'
            f'port = 9\n[sensors]\nsource = "sensor_logger_http"\n[windows]\nmin_free_mb = 0.3\n'
            f'[phone]\nport = {self.port}\ntoken = "{TOKEN}"\n'
        )
        with closing(StateStore(folder / "data")) as store:  # as after a start with the server in reach
            store.reset(identity=identity(announcement(), None), plan=make_plan().model_dump_json())
        self.number = 0

    @contextmanager
    def runs(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "edge_agent", "run", "--config", str(self.config)]
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as agent:
            try:
                self.until(lambda: self.is_listening() or agent.poll() is not None)
                assert agent.poll() is None
                yield agent
            finally:
                agent.kill()

    def is_listening(self) -> bool:
        try:
            return post(self.port)[0] == 200
        except OSError:
            return False

    def record(self, seconds: float) -> None:
        """Record walks of so many seconds, with an annotation, in one session after another."""
        times_s, sensors = walk(seconds, rate_hz=60.0, began_s=1_790_000_000.0 + 1000 * self.number)
        rows = [annotation(float(times_s[0]), LABEL), *entries(times_s, sensors)]
        for body in bodies(messages(rows, per_message=2000, session=str(self.number))):
            while post(self.port, body, PATH + TOKEN)[0] == 503:
                time.sleep(0.05)
        self.number += 1

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            CliRunner().invoke(app, ["status", "--json", "--config", str(self.config)]).stdout
        )
        return found

    def windows(self) -> int:
        return int(self.status()["windows"])

    def until(self, true: Callable[[], bool], seconds: float = 600.0) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, self.status()
            time.sleep(0.1)


def test_an_agent_on_a_full_disk_says_so_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    device = Device(small_disk)
    with device.runs() as agent:
        device.record(60)
        device.until(lambda: device.windows() > 30)
        before = device.windows()
        fill(small_disk / "filler")
        for _ in range(3):
            device.record(60)
        device.until(lambda: any("It does not collect" in line for line in device.status()["doing"]))
        assert agent.poll() is None
        assert post(device.port)[0] == 200
        assert device.windows() <= before + 20  # those that were waiting when the disk filled up
        (small_disk / "filler").unlink()
        device.until(lambda: device.windows() > before + 60)
        assert not any("It does not collect" in line for line in device.status()["doing"])
        device.record(60)
        agent.terminate()
        assert agent.wait(600) == 0
    store, connection_error = open_checked(small_disk / "data")
    store.close()
    assert connection_error == ""


def test_kills_cost_at_most_the_last_seconds(tmp_path: Path) -> None:
    device, kept = Device(tmp_path), 0
    for _ in range(6):
        with device.runs() as agent:
            device.record(60)
            before = kept
            device.until(lambda before=before: device.windows() > before + 30)
            agent.kill()
            agent.wait()
        assert device.windows() >= kept
        kept = device.windows()
    store, connection_error = open_checked(tmp_path / "data")
    with closing(store), store.reading() as db:
        starts = [row[0] for row in db.execute("SELECT start_s FROM windows ORDER BY id")]
    assert connection_error == ""
    assert len(starts) == len(set(starts)) == kept


def test_a_device_collects_what_a_phone_sends_although_its_broker_is_away(tmp_path: Path) -> None:
    device = Device(tmp_path)
    with device.runs() as agent:
        device.record(30)
        agent.terminate()
        assert agent.wait(600) == 0
    assert device.windows() == 22
    assert "without a connection" in device.status()["doing"][0]
