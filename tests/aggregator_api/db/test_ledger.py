"""The ledger's file: whole after a power cut, refused when damaged or another's, and without secrets."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator_api.auth import api_keys
from aggregator_api.cli.app import app as cli
from aggregator_api.core.errors import ConfigError, LedgerError, LedgerWriteError
from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from aggregator_api.storage.db import ledger as ledgers
from aggregator_api.storage.db.ledger import MAX_LINE_BYTES, Ledger, subject_of
from aggregator_api.storage.db.models import EndedAccessRow
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import TestClient, problem


def ended(*names: str, kind: str = "key", until: float | None = None) -> list[EndedAccessRow]:
    return [EndedAccessRow(kind=kind, subject=name, federation="", until=until) for name in names]


def test_entries_are_read_back_whole_or_from_a_size_on(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    id = ledger.begin()
    assert ledger.read() == (id, ledger.path.stat().st_size, ())
    first = ledger.append(id, 0, ended("a", "b"))
    second = ledger.append(id, first, ended("c"))
    assert (ledger.read().id, ledger.read().size) == (id, second) == (id, ledger.path.stat().st_size)
    assert subjects(ledger) == [subject_of("key", name) for name in "abc"]
    assert subjects(ledger, first) == [subject_of("key", "c")]
    assert subjects(ledger, second) == []
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(ledger.path.parent.stat().st_mode) == 0o700


def subjects(ledger: Ledger, start: int = 0) -> list[str]:
    return [entry.subject for entry in ledger.read(start).entries]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_a_power_cut_tore_is_dropped(tmp_path: Path, cut: int) -> None:
    ledger = Ledger(tmp_path)
    id = ledger.begin()
    size = ledger.append(id, 0, ended("a"))
    whole = ledger.path.read_bytes()
    ledger.append(id, size, ended("b"))
    ledger.path.write_bytes(ledger.path.read_bytes()[:-cut])
    assert ledger.read().size == size
    assert ledger.append(id, size, ended("c")) == ledger.path.stat().st_size
    assert ledger.path.read_bytes().startswith(whole)
    assert subjects(ledger) == [subject_of("key", name) for name in "ac"]


def test_zeros_that_a_power_cut_left_are_dropped(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    id = ledger.begin()
    size = ledger.append(id, 0, ended("a"))
    with ledger.path.open("ab") as file:
        file.write(bytes(5 * MAX_LINE_BYTES))
    assert ledger.read().size == size
    assert ledger.append(id, size, ended("b")) == ledger.path.stat().st_size
    assert subjects(ledger) == [subject_of("key", name) for name in "ab"]


@pytest.mark.parametrize("line", ["{}", "no json", "", "x" * 2 * MAX_LINE_BYTES, '{"ledger": "0"}'])
def test_damage_within_it_is_refused(tmp_path: Path, line: str) -> None:
    ledger = Ledger(tmp_path)
    id = ledger.begin()
    ledger.append(id, 0, ended("a", "b"))
    lines = ledger.path.read_text().splitlines()
    for at in range(len(lines) - 1):
        ledger.path.write_text("\n".join([*lines[:at], line, *lines[at + 1 :]]) + "\n")
        with pytest.raises(LedgerError, match="damaged in the line"):
            ledger.read()


def test_a_size_within_a_line_is_not_of_this_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    size = ledger.append(ledger.begin(), 0, ended("a", "b"))
    with pytest.raises(LedgerError, match="damaged in the line"):
        ledger.read(size - 10)


def test_another_servers_ledger_and_an_older_one_take_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with pytest.raises(LedgerWriteError, match="No such file"):
        ledger.append("0" * 32, 0, ended("a"))
    id = ledger.begin()
    with pytest.raises(LedgerWriteError, match="is another server's"):
        ledger.append("0" * 32, 0, ended("a"))
    with pytest.raises(LedgerWriteError, match=r"older than the database: it ends at byte \d+, not at 3000"):
        ledger.append(id, 3000, ended("a"))
    assert ledger.read().entries == ()


def test_a_new_one_leaves_the_old_one_beside_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    old = ledger.begin()
    assert ledger.begin() != old
    (kept,) = tmp_path.glob("revocations.jsonl.*")
    assert old in kept.read_text()


def test_programs_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    id = Ledger(tmp_path).begin()
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(lambda n: Ledger(tmp_path).append(id, 0, ended(f"k{n}")), range(40)))
    assert len(set(sizes)) == 40
    assert set(subjects(Ledger(tmp_path))) == {subject_of("key", f"k{n}") for n in range(40)}


def test_nothing_ends_that_the_ledger_does_not_hold(tmp_path: Path) -> None:
    """It is written first: where it cannot be, the revocation is refused in words, and has not happened."""
    app = create_app(Settings(data_dir=tmp_path / "data", aggregation_process=False), Wires)
    with TestClient(app) as server:
        operator = {"Authorization": f"Bearer {(tmp_path / 'data' / api_keys.OPERATOR_FILE).read_text().strip()}"}
        made = server.post("/v1/keys", json={"name": "x", "scopes": ["read"]}, headers=operator).json()
        revoke = f"/v1/keys/{made['id']}/revoke"
        path = server.runtime.ledger.path
        path.rename(path.with_name("away"))
        said = problem(server.post(revoke, headers=operator), 503)["detail"]
        assert "cannot be written: No such file or directory; nothing was changed" in said
        theirs = {"Authorization": f"Bearer {made['key']}"}
        assert server.get("/v1/federations", headers=theirs).status_code == 200
        told = CliRunner().invoke(cli, ["keys", "revoke", made["id"], "--data-dir", str(tmp_path / "data")])
        assert (told.exit_code, "nothing was changed" in told.stderr) == (2, True)
        path.with_name("away").rename(path)
        assert server.post(revoke, headers=operator).status_code == 200
        assert server.get("/v1/federations", headers=theirs).status_code == 401
        written = path.read_text()
    assert subject_of("key", made["id"]) in written
    assert made["id"] not in written
    assert [json.loads(line)["kind"] for line in written.splitlines()[1:]] == ["key"]


def test_a_server_does_not_start_without_its_ledger_until_it_is_told_what_to_do(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", aggregation_process=False)
    with TestClient(create_app(settings, Wires)):
        pass
    settings.ledger.rename(tmp_path / "lost")
    other = Settings(data_dir=tmp_path / "data", ledger_dir=tmp_path / "lost", aggregation_process=False)
    with TestClient(create_app(other, Wires)):
        pass  # it lies where the setting says
    refused = pytest.raises(ConfigError, match=r"cannot be read: No such file.* `new-epoch`.* `new-ledger`")
    with refused, TestClient(create_app(settings, Wires)):
        pass
    fsck = CliRunner().invoke(cli, ["fsck", "--data-dir", str(tmp_path / "data")])
    assert (fsck.exit_code, "set ledger_dir to where it lies" in fsck.output) == (1, True)
    told = CliRunner().invoke(cli, ["new-ledger", "--data-dir", str(tmp_path / "data")])
    assert (told.exit_code, "make a backup now" in told.output) == (0, True), told.output
    with TestClient(create_app(settings, Wires)):
        pass


def test_a_start_ends_what_a_copied_database_has_forgotten(tmp_path: Path) -> None:
    """A snapshot of the disk that was put back without `restore`, or a crash between the ledger and the commit."""
    settings = Settings(data_dir=tmp_path / "data", aggregation_process=False)
    with TestClient(create_app(settings, Wires)) as server:
        operator = {"Authorization": f"Bearer {(tmp_path / 'data' / api_keys.OPERATOR_FILE).read_text().strip()}"}
        made = server.post("/v1/keys", json={"name": "x", "scopes": ["read"]}, headers=operator).json()
        with server.runtime.database.read() as session:
            state = ledgers.position(session)
            id, size = str(state.ledger), state.size
        server.runtime.ledger.append(id, size, ended(made["id"]))
    with TestClient(create_app(settings, Wires), key=made["key"]) as server:
        assert server.get("/v1/federations").status_code == 401
