"""A backup of a running server is what a server is restored from, in a new epoch; `fsck` says whether all is whole."""

from __future__ import annotations

import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import select, update
from typer.testing import CliRunner

from aggregator_api.cli.app import app
from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import Settings
from aggregator_api.maintenance.backup import back_up
from aggregator_api.maintenance.fsck import check
from aggregator_api.maintenance.restore import begin_epoch, restore
from aggregator_api.storage.db import epochs, repositories
from aggregator_api.storage.db.models import EventRow, ModelVersionRow, RoundRow, UpdateRow
from aggregator_api.storage.findings import Severity
from federation import wire
from federation.methods import method_from_json
from federation.protocol import topics
from federation.protocol.messages import AdoptionReport, DeviceStatus, ReleaseReport, write
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan


class Said(NamedTuple):
    exit_code: int
    output: str
    stderr: str


def command(*words: str | Path) -> Said:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return Said(result.exit_code, result.output, result.stderr)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Bench]:
    """A server whose first round waits for devices a and b."""
    bench = Bench(tmp_path / "data", tiny_plan(rounds=1, deadline_s=3600))
    for device in ("a", "b"):
        bench.say(device, "ready")
    yield bench
    bench.runtime.stop()


def test_a_server_goes_on_from_a_backup_made_in_the_middle_of_a_round(live: Bench, tmp_path: Path) -> None:
    state = wire.decode(live.state(), limit_bytes=1 << 20)
    first, second = live.update_of("a", examples=15), live.update_of("b")
    assert live.upload(first).status == "accepted"
    live.begin(second)
    said = command("backup", "--data-dir", tmp_path / "data", "--out", tmp_path / "copy")
    assert said.exit_code == 0, said.output
    live.upload(second)  # what comes afterwards is not in it
    wait_for(lambda: live.now().state == "finished")

    said = command("restore", "--from", tmp_path / "copy", "--data-dir", tmp_path / "again")
    assert (said.exit_code, "problem" in said.output) == (0, False), said.output
    assert "round 1 is collecting: 1 devices have reported, 1 are awaited" in said.output
    restored = Bench(tmp_path / "again")
    assert restored.count("accepted") == 1
    assert (restored.now().state, restored.invited()) == ("collecting", ("b",))
    assert restored.now().epoch == restored.wires.invitations("b")[-1].epoch > 1_000_000_000
    assert (restored.now().deadline or 0) > time.time() + 3590  # nobody could know of it meanwhile
    assert restored.begin(first).status == "accepted"  # it is known
    assert restored.upload(second).status == "accepted"
    wait_for(lambda: restored.now().state == "finished")
    expected = method_from_json({"name": "fedavg"}).aggregate(state, iter([first.update, second.update]))
    assert restored.state() == wire.encode(expected)
    restored.runtime.stop()


def test_what_a_device_says_of_an_earlier_epochs_models_is_not_taken(live: Bench) -> None:
    with live.runtime.database.write() as session:
        begun = epochs.begin(session)
        events = session.scalars(select(EventRow.kind)).all()
    assert events[-1] == "server.restored"

    def said(epoch: int) -> str | None:
        here = {"instance": live.now().instance, "epoch": epoch}
        adoption = AdoptionReport(**here, round=1, source="global", answer="adopted")
        release = ReleaseReport(**here, rollout=1, answer="adopted")
        status = DeviceStatus(state="idle", adoption=adoption, release=release)
        live.send(topics.status(FEDERATION, "a"), write(status))
        with live.runtime.database.read() as session:
            federation = repositories.find_federation(session, FEDERATION)
            assert federation is not None
            row = repositories.find_device(session, federation, "a")
            return row.adoption if row else None

    assert said(1) is None
    assert said(begun) == "adopted"


def test_every_restore_begins_a_higher_epoch(live: Bench, tmp_path: Path) -> None:
    back_up(live.runtime.settings, tmp_path / "copy")
    now = int(time.time())
    first = restore(Settings(data_dir=tmp_path / "one"), tmp_path / "copy").epoch
    assert now <= first <= now + 60
    assert begin_epoch(Settings(data_dir=tmp_path / "one")).epoch > first  # also within the same second
    assert restore(Settings(data_dir=tmp_path / "two"), tmp_path / "copy", 7).epoch == 7
    said = command("new-epoch", "--data-dir", tmp_path / "two", "--epoch", 7)
    assert (said.exit_code, "epoch 7 was asked for; it must be above" in said.stderr) == (2, True), said.output
    assert "epoch 8 has begun" in command("new-epoch", "--data-dir", tmp_path / "two", "--epoch", 8).output


def test_a_restore_does_not_mix_and_a_backup_is_no_servers_folder(live: Bench, tmp_path: Path) -> None:
    copy, data = tmp_path / "copy", tmp_path / "data"
    back_up(live.runtime.settings, copy)
    refused = {
        "there is a database already": ("restore", "--from", copy, "--data-dir", data),
        "is no backup: it has no backup.json": ("restore", "--from", data, "--data-dir", tmp_path / "x"),
        "is the backup itself": ("restore", "--from", copy, "--data-dir", copy),
        "is a backup; bring the server back with": ("serve", "--data-dir", copy),
        "there is no database": ("new-epoch", "--data-dir", tmp_path / "none"),
    }
    for words, asked in refused.items():
        said = command(*asked)
        assert (said.exit_code, words in " ".join(said.stderr.split())) == (2, True), said.output
    other = tmp_path / "other"
    other.mkdir()
    (other / "identity.pem").write_text("another server's")
    with pytest.raises(ConfigError, match="is another server's key; devices trust the backup's alone"):
        restore(Settings(data_dir=other), copy)
    with pytest.raises(ConfigError, match="is a backup of a server on sqlite, but this one is on PostgreSQL"):
        restore(Settings(data_dir=other, database_url="postgresql+psycopg://u:secret@h/d"), copy)


def test_a_restore_that_was_cut_off_can_be_done_again(
    live: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(live.runtime.settings, tmp_path / "copy")

    def cut_off(*_: object) -> None:
        raise OSError("no power")

    with monkeypatch.context() as patch:
        patch.setattr(epochs, "begin", cut_off)
        assert command("restore", "--from", tmp_path / "copy", "--data-dir", tmp_path / "again").exit_code == 2
    assert not (tmp_path / "again" / "gaitway.sqlite3").exists()
    assert command("restore", "--from", tmp_path / "copy", "--data-dir", tmp_path / "again").exit_code == 0


def test_a_backup_is_consistent_while_rows_are_written(live: Bench, tmp_path: Path) -> None:
    stop = threading.Event()

    def write_rows() -> None:
        while not stop.is_set():
            for device in ("x", "y"):
                live.say(device, "idle")
                live.say(device, "collecting")

    writer = threading.Thread(target=write_rows)
    writer.start()
    for n in range(3):
        back_up(live.runtime.settings, tmp_path / f"copy{n}")
    stop.set()
    writer.join()
    for n in range(3):
        with sqlite3.connect(tmp_path / f"copy{n}" / "gaitway.sqlite3") as copy:
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert copy.execute("SELECT count(*) FROM federations").fetchone() == (1,)
        copy.close()


def test_a_second_backup_writes_only_new_blobs_and_all_are_private(live: Bench, tmp_path: Path) -> None:
    out, data = tmp_path / "copy", tmp_path / "data"
    for name in ("operator.key", "authority/ca.key"):
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text("power over others")
    first = back_up(live.runtime.settings, out)
    assert first.blobs == 1  # the initial model; its state and its broadcast are the same bytes
    assert first.keys == ("identity.pem",)
    assert back_up(live.runtime.settings, out).blobs == 0
    files = [path for path in out.rglob("*") if path.is_file()]
    assert not any(b"power over others" in path.read_bytes() for path in files)
    said = command("backup", "--data-dir", data, "--out", out, "--with-authority-keys")
    assert "the keys identity.pem, operator.key, authority/ca.key" in said.output
    restore(Settings(data_dir=tmp_path / "again"), out)
    assert (tmp_path / "again" / "authority" / "ca.key").read_text() == "power over others"
    for top in (out, tmp_path / "again"):
        files = [path for path in top.rglob("*") if path.is_file()]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        assert {stat.S_IMODE(path.stat().st_mode) for path in (top, *top.rglob("*")) if path.is_dir()} == {0o700}
    key = live.runtime.settings.identity
    assert (out / key.name).read_bytes() == (tmp_path / "again" / key.name).read_bytes() == key.read_bytes()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"database_url": "postgresql+psycopg://u:secret@127.0.0.1:9/d"}, "pg_dump"),
        ({"blob_url": "s3://bucket"}, "are no folder"),
        ({}, "no database"),
    ],
)
def test_what_cannot_be_copied_is_said(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as failed:
        back_up(Settings(data_dir=tmp_path, **settings), tmp_path / "copy")
    assert "secret" not in str(failed.value)


def findings(bench: Bench, *, repair: bool = False) -> list[str]:
    """Return the problems that `fsck` finds, or has repaired, with what to do."""
    findings = check(bench.runtime.settings, repair=repair)
    return [f"{one.message}; {one.advice}" for one in findings if one.level is not Severity.OK]


def test_a_whole_server_has_no_problem(live: Bench, tmp_path: Path) -> None:
    live.upload(live.update_of("a"))
    live.begin(live.update_of("b"))
    assert findings(live) == []
    said = command("fsck", "--data-dir", tmp_path / "data")
    assert said.exit_code == 0
    assert "all 2 blobs that rows need are here" in said.output
    assert "1 updates are under way" in said.output
    assert command("fsck", "--data-dir", tmp_path / "none").exit_code == 2


def test_what_is_missing_damaged_or_astray_is_said(live: Bench, tmp_path: Path) -> None:
    live.upload(live.update_of("a"))
    with live.runtime.database.read() as session:
        model = session.scalars(select(ModelVersionRow.broadcast_sha256)).one()
        sent = session.scalars(select(UpdateRow.sha256)).one()
    blobs = tmp_path / "data" / "blobs"
    (blobs / model[:2] / model).unlink()
    (blobs / sent[:2] / sent).write_bytes(b"other bytes")
    spool = tmp_path / "data" / "spool" / "walk" / "gone"
    spool.mkdir(parents=True)
    (spool / "u1.json").write_text("{}")
    live.runtime.settings.identity.chmod(0o640)
    with live.runtime.database.write() as session:
        session.execute(update(RoundRow).values(pending=5))
    said = " | ".join(findings(live))
    for words in (
        "version 0 of walk (latest, stable): its blob",
        "is not in the store",
        "bring the server back from a backup",
        "of round 1: its blob",
        "is damaged",
        "its round will fail with this reason",
        "counts 5 awaited and 1 received devices, its rows are (1, 1)",
        "1 half-received updates cannot be resumed, such as u1",
        "others can read the server's key",
    ):
        assert words in said, (words, said)
    assert command("fsck", "--data-dir", tmp_path / "data", "--repair").exit_code == 1
    left = " | ".join(findings(live))
    assert ("half-received" in left, "others can read" in left, "version 0" in left) == (False, False, True)


def test_a_damaged_database_is_said(live: Bench, tmp_path: Path) -> None:
    back_up(live.runtime.settings, tmp_path / "copy")
    path = tmp_path / "copy" / "gaitway.sqlite3"
    data = bytearray(path.read_bytes())
    data[8192:8300] = bytes(108)
    path.write_bytes(data)
    said = command("fsck", "--data-dir", tmp_path / "copy")
    assert (said.exit_code, "damaged" in said.output or "cannot be read" in said.output) == (1, True), said.output
    assert "bring the server back from a backup" in said.output
