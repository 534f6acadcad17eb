"""Raw motion, models, databases and keys are their owner's alone, under any umask, in a program and as a library."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator_api.transport.mqtt.mosquitto import folders
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.supervisor import Supervisor
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import tiny_plan
from tests.edge_agent.conftest import device, supervised_device
from tests.edge_agent.factories import make_config
from tests.edge_agent.supervised import SupervisedDevice, run, until

pytestmark = pytest.mark.ci

__all__ = ["device", "supervised_device"]


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Let everything that says nothing about its mode be readable and writable by everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def readable_by_others(folder: Path) -> list[str]:
    """Name every file and folder that has a right for others, and its mode."""
    found = [folder, *folder.rglob("*")]
    assert len(found) > 3, "there is nothing in the folder"
    return [f"{path} {oct(path.lstat().st_mode)}" for path in found if path.lstat().st_mode & 0o077]


def start_and_stop(supervisor: Supervisor) -> None:
    supervisor.stop()
    supervisor.run()


def open_up(folder: Path) -> None:
    """Leave a folder as an earlier version has, under a careless umask."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)


@pytest.mark.usefixtures("open_umask")
def test_a_server_that_did_a_round_leaves_nothing_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "below" / "data"
    bench = Bench(folder, tiny_plan())
    try:
        for name in ("a", "b"):
            bench.say(name, "ready")
        assert bench.upload(bench.update_of("a")).status == "accepted"
        half = bench.update_of("b")
        bench.begin(half)
        bench.send(half.topic("chunk", 0), half.chunks()[0])
        assert sorted(path.suffix for path in (folder / "spool").rglob("r1-b*")) == [".have", ".json", ".part"]
        assert {path.name for path in folder.glob("*.sqlite3*")} >= {"gaitway.sqlite3", "gaitway.sqlite3-wal"}
        assert readable_by_others(tmp_path / "below") == []
    finally:
        bench.runtime.stop()


@pytest.mark.parametrize("supervised_device", [1], indirect=True)
def test_an_agent_that_trained_leaves_nothing_to_others(supervised_device: SupervisedDevice, open_umask: None) -> None:
    folder = supervised_device.folder

    def play() -> None:
        supervised_device.invite()

        def trained() -> bool:
            store = StateStore(folder)
            try:
                return bool(store.outbox())
            finally:
                store.close()

        until(trained, timeout_s=60)
        assert {path.name for path in folder.iterdir()} >= {"outbox", "clients", "windows.sqlite", "agent.sqlite-wal"}
        assert readable_by_others(folder) == []

    run(supervised_device.supervisor, play)
    assert readable_by_others(folder) == []


def test_what_was_readable_before_is_made_private_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not what an operator has put there: only what the programs have made."""
    for folder, start in (
        (tmp_path / "server", lambda: Bench(tmp_path / "server").runtime.stop()),
        (tmp_path / "agent", lambda: start_and_stop(Supervisor.open(make_config(tmp_path / "agent")))),
    ):
        start()
        open_up(folder)
        mine = folder / "notes.txt"
        mine.touch(0o644)
        start()
        assert stat.S_IMODE(mine.stat().st_mode) == 0o644
        mine.unlink()
        assert readable_by_others(folder) == []
        assert "permissions tightened" in caplog.text
        assert f"folder={folder}: others could read them" in caplog.text


def test_the_programs_set_their_umask(tmp_path: Path) -> None:
    server, agent = tmp_path / "server", tmp_path / "agent"
    config = agent / "agent.toml"
    command = [sys.executable, "-m"]
    migrate = [*command, "aggregator_api", "migrate", "--data-dir", str(server)]
    subprocess.run(migrate, check=True, capture_output=True, umask=0)
    words = ["--server", "http://127.0.0.1:9", "--token-file", "-", "--federation", "f", "--device", "d"]
    enrol = [*command, "edge_agent", "enrol", "--config", str(config), *words]
    subprocess.run(enrol, input=b"gwe_t_" + b"0" * 32, check=False, capture_output=True, umask=0)
    assert (agent / "d" / "device.key").is_file()
    for folder in (server, agent):
        assert [f"{p} {oct(p.stat().st_mode)}" for p in (folder, *folder.rglob("*")) if p.stat().st_mode & 0o077] == []


def test_the_broker_can_pass_to_its_folder_under_any_umask(tmp_path: Path) -> None:
    """It becomes another user, to whom alone the folder belongs."""
    before = os.umask(0o077)
    try:
        folders.create(folders.Installation(tmp_path / "etc" / "gaitway"))
    finally:
        os.umask(before)
    for path in (tmp_path / "etc", tmp_path / "etc" / "gaitway"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "etc" / "gaitway" / "broker").stat().st_mode) == 0o700
