"""A backup of a running server is a folder that a server goes on from."""

from __future__ import annotations

import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator_api.backup import back_up
from aggregator_api.cli import app
from aggregator_api.errors import ConfigError
from aggregator_api.settings import Settings
from federation import wire
from federation.methods import method_from_json

from .bench import Bench, wait_for
from .devices import tiny_plan


def test_a_server_goes_on_from_a_backup_made_in_the_middle_of_a_round(tmp_path: Path) -> None:
    live = Bench(tmp_path / "data", tiny_plan(rounds=1))
    for device in ("a", "b"):
        live.say(device, "ready")
    state = wire.decode(live.state(), limit_bytes=1 << 20)
    first, second = live.update_of("a", examples=30), live.update_of("b")
    assert live.upload(first).status == "accepted"
    live.begin(second)

    said = CliRunner().invoke(app, ["backup", "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "copy")])
    assert said.exit_code == 0, said.output
    live.upload(second)  # what comes afterwards is not in it
    wait_for(lambda: live.now().state == "finished")
    live.runtime.stop()

    restored = Bench(tmp_path / "copy")
    assert restored.count("accepted") == 1
    assert (restored.now().state, restored.invited()) == ("collecting", ("b",))
    assert restored.begin(first).status == "accepted"  # it is known
    assert restored.upload(second).status == "accepted"
    wait_for(lambda: restored.now().state == "finished")
    expected = method_from_json({"name": "fedavg"}).aggregate(state, iter([first.update, second.update]))
    assert restored.state() == wire.encode(expected)
    restored.runtime.stop()


def test_a_backup_is_consistent_while_rows_are_written(tmp_path: Path) -> None:
    live = Bench(tmp_path / "data", tiny_plan())
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for device in ("x", "y"):
                live.say(device, "idle")
                live.say(device, "collecting")

    writer = threading.Thread(target=write)
    writer.start()
    for n in range(3):
        back_up(live.runtime.settings, tmp_path / f"copy{n}")
    stop.set()
    writer.join()
    live.runtime.stop()
    for n in range(3):
        with sqlite3.connect(tmp_path / f"copy{n}" / "gaitway.sqlite3") as copy:
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert copy.execute("SELECT count(*) FROM federations").fetchone() == (1,)
        copy.close()


def test_a_second_backup_into_the_same_folder_writes_only_new_blobs_and_all_are_private(tmp_path: Path) -> None:
    live = Bench(tmp_path / "data", tiny_plan())
    first = back_up(live.runtime.settings, tmp_path / "copy")
    assert first.blobs == 1  # the initial model; its state and its broadcast are the same bytes
    assert back_up(live.runtime.settings, tmp_path / "copy").blobs == 0
    live.runtime.stop()
    files = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    key = live.runtime.settings.identity
    assert (tmp_path / "copy" / key.name).read_bytes() == key.read_bytes()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"database_url": "postgresql+psycopg://u:secret@h/d"}, "pg_dump"),
        ({"blob_url": "s3://bucket"}, "no database"),
        ({}, "no database"),
    ],
)
def test_what_cannot_be_copied_is_said(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as failed:
        back_up(Settings(data_dir=tmp_path, **settings), tmp_path / "copy")
    assert "secret" not in str(failed.value)
