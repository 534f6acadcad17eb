"""The audit: every operator's write is in it, nothing leaves it, and strangers cannot fill the disk with it."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select, text
from sqlalchemy.exc import DatabaseError
from typer.testing import CliRunner, Result

from aggregator_api.auth import api_keys
from aggregator_api.cli.app import app as cli
from aggregator_api.core.errors import BrokerError
from aggregator_api.core.settings import Settings, sqlite_url
from aggregator_api.http.api.middleware.audit import action
from aggregator_api.http.app import create_app
from aggregator_api.operations.counts import ADDRESSES, WINDOW_S, RefusalLog
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.audit import Filters, Intent
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import AuditRow
from tests.aggregator_api.auth.route_table import DEVICE_MESSAGES, OPEN
from tests.aggregator_api.generated_devices import FEDERATION, Wires, tiny_plan
from tests.aggregator_api.http_client import TestClient

HERE = f"/v1/federations/{FEDERATION}"
AWAY = "203.0.113.9"


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    limits = {"key_requests_per_s": 1e6, "address_requests_per_s": 1e6, "failed_keys_per_s": 1e6}
    return create_app(Settings(data_dir=tmp_path / "data", host="0.0.0.0", **limits), Wires)


@pytest.fixture
def admin(app: FastAPI) -> Iterator[TestClient]:
    """The operator from elsewhere, with one federation."""
    with TestClient(app, host=AWAY) as client:
        folder: Path = app.state.runtime.settings.data_dir
        client.headers["Authorization"] = f"Bearer {(folder / api_keys.OPERATOR_FILE).read_text().strip()}"
        body = {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")}
        assert client.post("/v1/federations", json=body).status_code == 201
        yield client


@pytest.fixture
def database(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database with the newest schema, and three entries."""
    postgresql = getattr(request, "param", "sqlite") == "postgresql"
    found = Database(
        request.getfixturevalue("cluster").new_database() if postgresql else sqlite_url(tmp_path / "a.sqlite3")
    )
    found.migrate()
    with found.write() as session:
        for name in ("one", "two", "three"):
            audit.record(session, "keys.create", actor="k", detail=name)
    yield found
    found.close()


def entries(client: TestClient, **filters: Any) -> list[dict[str, Any]]:
    answer = client.get("/v1/audit", params={"limit": 500, **filters})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def own_id(client: TestClient) -> str:
    return client.headers["Authorization"].split("_")[1]


def test_every_route_that_may_change_something_is_in_the_audit(admin: TestClient, app: FastAPI) -> None:
    asked = 0
    for path, operations in app.openapi()["paths"].items():
        if path in DEVICE_MESSAGES:
            continue  # not more than at a broker: an operator's key opens none of them
        for method in set(operations) - {"get", "head"}:
            before = len(entries(admin))
            place = path.replace("{name}", FEDERATION).replace("{id}", "0" * 12).replace("{device}", "d")
            place = place.replace("{", "").replace("}", "")
            admin.request(method, place, json={})
            app.state.runtime.refusals.flush(closing=True)
            added = entries(admin)[before:]
            wanted = action(method, path, has_list="get" in operations)
            assert [entry["action"] for entry in added] == [wanted], (method, path)
            assert added[0]["address"] == AWAY
            assert added[0]["actor"] == ("device" if path in OPEN else own_id(admin))
            asked += 1
    assert asked >= 19


@pytest.mark.parametrize(
    ("method", "path", "has_list", "wanted"),
    [
        ("post", "/v1/federations", True, "federations.create"),
        ("patch", "/v1/federations/{name}", True, "federations.change"),
        ("post", "/v1/federations/{name}/pause", False, "federations.pause"),
        ("post", "/v1/federations/{name}/rollouts", True, "rollouts.create"),
        ("post", "/v1/federations/{name}/rollouts/{number}/halt", False, "rollouts.halt"),
        ("post", "/v1/federations/{name}/devices/{device}/revoke", False, "devices.revoke"),
        ("delete", "/v1/federations/{name}/aliases/{alias}", False, "aliases.delete"),
        ("post", "/v1/enrol/claim", False, "devices.claim"),
    ],
)
def test_what_is_done_has_a_noun_and_a_verb(method: str, path: str, has_list: bool, wanted: str) -> None:
    assert action(method, path, has_list=has_list) == wanted


def test_an_entry_says_who_did_what_from_where(admin: TestClient) -> None:
    made = admin.post("/v1/keys", json={"name": "grafana", "scopes": ["read"], "federation": FEDERATION}).json()
    admin.post(f"{HERE}/pause")
    admin.post(f"{HERE}/pause")
    key, paused, refused = entries(admin)[-3:]
    assert (key["action"], key["federation"], key["count"]) == ("keys.create", FEDERATION, 1)
    assert key["detail"].startswith(f"key {made['id']}; ")
    assert made["key"].rpartition("_")[2] not in json.dumps(entries(admin))
    assert (paused["action"], paused["federation"], paused["detail"]) == ("federations.pause", FEDERATION, "")
    assert refused["detail"].startswith("answered 409: federation 'walk' is paused")
    assert entries(admin, action="keys", federation=FEDERATION) == [key]
    assert entries(admin, actor="nobody") == []
    assert entries(admin, since=refused["at"]) == [refused]


def test_an_entry_is_written_with_what_it_tells_or_neither_is(
    admin: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, TestClient(app, raise_server_exceptions=False) as careful:
        careful.headers.update(admin.headers)
        patch.setattr(audit, "record", full)
        assert careful.post(f"{HERE}/pause").status_code >= 500
    assert admin.get(HERE).json()["status"] == "running"


def test_what_failed_after_its_first_half_is_told_in_two_entries(
    admin: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: str) -> None:
        raise BrokerError("no answer")

    from federation.protocol import topics
    from tests.aggregator_api.generated_devices import status

    app.state.runtime.ingest.handle(topics.status(FEDERATION, "d"), status("ready"))
    monkeypatch.setattr(app.state.runtime.accounts, "revoke", silent)
    assert admin.post(f"{HERE}/devices/d/revoke").status_code == 503
    done, failed = entries(admin, device="d")
    assert (done["action"], done["detail"]) == ("devices.revoke", "")
    assert failed["detail"].startswith("answered 503: the device is revoked here, but the broker")


def test_a_repeated_request_that_is_not_worked_on_again_has_one_entry(admin: TestClient) -> None:
    for _ in range(2):
        assert admin.post(f"{HERE}/pause", headers={"Idempotency-Key": "once"}).status_code == 200
    assert len(entries(admin, action="federations.pause")) == 1


def test_wrong_keys_are_in_it_and_cannot_fill_the_disk(admin: TestClient, app: FastAPI) -> None:
    thief = TestClient(app, host="198.51.100.7", key=f"gw_{'ab' * 6}_{'x' * 43}")
    for _ in range(50):
        assert thief.post("/v1/keys", json={}).status_code == 401
    app.state.runtime.refusals.flush(closing=True)
    (found,) = entries(admin, action="access.refuse")
    assert (found["actor"], found["address"], found["count"]) == ("ab" * 6, "198.51.100.7", 50)
    assert found["detail"].startswith("POST /v1/keys: this key is unknown")
    assert "x" * 43 not in json.dumps(found)


def test_wrong_keys_above_their_limit_are_one_entry_of_an_address_and_minute(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path, host="0.0.0.0", failed_keys_per_s=0.01), Wires)
    with TestClient(app, host=AWAY) as admin:
        admin.headers["Authorization"] = f"Bearer {(tmp_path / api_keys.OPERATOR_FILE).read_text().strip()}"
        for host in ("198.51.100.7", "198.51.100.8"):
            thief = TestClient(app, host=host, key=f"gw_{'ab' * 6}_{'x' * 43}")
            assert [thief.get("/v1/federations").status_code for _ in range(40)] == [401] + [429] * 39
        assert entries(admin, action="access.limit") == []  # none is written for one request
        app.state.runtime.refusals.flush(closing=True)
        found = entries(admin, action="access.limit")
    assert [(each["address"], each["count"]) for each in found] == [("198.51.100.7", 39), ("198.51.100.8", 39)]
    assert {each["detail"] for each in found} == {"GET /v1/federations: too many wrong keys"}
    assert {each["actor"] for each in found} == {"ab" * 6}


def test_the_first_operators_key_is_in_it(admin: TestClient, app: FastAPI) -> None:
    first = entries(admin)[0]
    path: Path = app.state.runtime.settings.data_dir / api_keys.OPERATOR_FILE
    _, prefix, secret = path.read_text().strip().split("_", 2)
    assert (first["actor"], first["action"], first["address"]) == ("server", "keys.create", "")
    assert prefix in first["detail"]
    assert secret not in json.dumps(entries(admin))


def test_a_key_that_may_not_is_in_it(admin: TestClient, app: FastAPI) -> None:
    reader = admin.post("/v1/keys", json={"name": "r", "scopes": ["read"]}).json()
    asking = TestClient(app, host=AWAY, key=reader["key"])
    assert asking.post(f"{HERE}/pause").status_code == 403
    assert asking.get("/v1/audit").status_code == 403
    found = entries(admin, action="access.refuse")
    assert [entry["actor"] for entry in found] == [reader["id"]]


def test_refused_and_accepted_enrolments_are_in_it_without_their_tokens(admin: TestClient, app: FastAPI) -> None:
    said = {"token": "gwt_guess", "federation": FEDERATION, "device": "d", "public_key": "A" * 43 + "="}
    assert admin.post("/v1/enrol", json={**said, "signature": "A" * 86 + "=="}).status_code == 401
    app.state.runtime.refusals.flush(closing=True)
    (refused,) = entries(admin, action="devices.enrol")
    assert (refused["federation"], refused["device"], refused["actor"]) == (FEDERATION, "d", "device")
    assert refused["detail"].startswith("answered 401: the signature")
    assert "gwt_guess" not in json.dumps(entries(admin))


def test_refusals_of_many_addresses_are_bounded(database: Database) -> None:
    now = [0.0]
    refusals = RefusalLog(database, clock=lambda: now[0])
    for k in range(1000):
        refusals.note(Intent("unknown", f"10.0.{k // 250}.{k % 250}", "access.refuse"))
    now[0] = WINDOW_S
    refusals.note(Intent("unknown", "10.9.9.9", "access.refuse"))
    with database.read() as session:
        found = session.scalars(audit.select_entries(Filters(action="access.refuse"))).all()
    assert len(found) == ADDRESSES + 1 + 1 + 1  # each first one, the first of all others, their count, the next minute
    assert sum(row.count for row in found) == 1001


def test_a_database_that_does_not_take_a_refusal_does_not_cost_the_answer(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with database.write() as session:
        session.execute(text("DROP TABLE audit_entries"))
    with caplog.at_level(logging.ERROR):
        RefusalLog(database).note(Intent("unknown", "10.0.0.1", "access.refuse"))
    assert "refusals not recorded in the audit" in caplog.text


# ---- append-only


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_entries SET detail = 'other'",
        "DELETE FROM audit_entries",
        "DELETE FROM audit_entries WHERE id = 3",
    ],
)
def test_the_database_refuses_to_change_or_delete_an_entry(database: Database, statement: str) -> None:
    with pytest.raises(DatabaseError, match="append-only"), database.write() as session:
        session.execute(text(statement))
    with database.read() as session:
        assert audit.verify(session)[:2] == (3, 3)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_postgresql_refuses_to_truncate_it(database: Database) -> None:
    with pytest.raises(DatabaseError, match="append-only"), database.write() as session:
        session.execute(text("TRUNCATE audit_entries"))


@pytest.mark.parametrize(
    ("statement", "holds"),
    [
        ("UPDATE audit_entries SET actor = 'somebody else' WHERE id = 2", 1),
        ("UPDATE audit_entries SET at = at + 1 WHERE id = 3", 2),
        ("DELETE FROM audit_entries WHERE id = 1", 0),
        ("DELETE FROM audit_entries WHERE id = 2", 1),
        ("DELETE FROM audit_entries WHERE id = 3", 2),
    ],
)
def test_verify_shows_what_somebody_with_the_database_did(database: Database, statement: str, holds: int) -> None:
    with database.read() as session:
        head = audit.verify(session).digest
    with database.write() as session:
        session.execute(text("DROP TRIGGER audit_entries_no_update"))
        session.execute(text("DROP TRIGGER audit_entries_no_delete"))
        session.execute(text(statement))
    with database.read() as session:
        found = audit.verify(session, head)
    assert found.error
    assert found.entries == holds


def test_what_databases_cannot_hold_does_not_break_the_chain(database: Database) -> None:
    with database.write() as session:
        audit.record(session, "x.y", actor="a\0b\ud800", detail="line\nbreak" + "ü" * 1000)
    with database.read() as session:
        assert audit.verify(session)[:2] == (4, 4)
        row = session.scalars(select(AuditRow).order_by(AuditRow.id.desc()).limit(1)).one()
    assert len(row.detail) == audit.DETAIL_CHARS
    assert "\n" not in row.detail


# ---- on the server's machine


def run(*words: str, folder: Path) -> Result:
    return CliRunner().invoke(cli, [*words, "--data-dir", str(folder)])


def test_what_the_command_line_does_is_in_it_and_comes_out_again(tmp_path: Path) -> None:
    assert run("migrate", folder=tmp_path).exit_code == 0
    assert run("keys", "create", "--name", "=cmd", "--scope", "read", folder=tmp_path).exit_code == 2
    made = run("keys", "create", "--name", "grafana", "--scope", "read", folder=tmp_path).stdout.strip()
    assert run("keys", "revoke", made.split("_")[1], folder=tmp_path).exit_code == 0
    out = tmp_path / "audit.csv"
    done = run("audit", "export", "--since", "1h", "--format", "csv", "--out", str(out), folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert out.stat().st_mode & 0o777 == 0o600
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["action"] for row in rows] == ["keys.create", "keys.revoke"]
    assert {row["actor"] for row in rows} == {audit.operating_user()}
    lines = run("audit", "export", folder=tmp_path).stdout.splitlines()
    assert [json.loads(line)["digest"] for line in lines] == [row["digest"] for row in rows]
    assert "grafana" in run("audit", "list", folder=tmp_path).stdout
    verified = run("audit", "verify", "--expect-digest", rows[0]["digest"], folder=tmp_path)
    assert verified.exit_code == 0, verified.output
    assert f"2 entries are intact; the last is 2 with the digest {rows[1]['digest']}" in verified.stdout
    assert run("audit", "verify", "--expect-digest", "f" * 64, folder=tmp_path).exit_code == 1


def test_a_cell_of_the_export_is_no_formula() -> None:
    row = AuditRow(
        id=1, at=0.0, actor="=1+1", address="", action="a.b", federation="", device="", detail="-x", count=1, digest="0"
    )
    out = io.StringIO()
    audit.export([row], out, "csv")
    assert "'=1+1" in out.getvalue()
    assert "'-x" in out.getvalue()


def test_a_time_that_is_none_is_told(tmp_path: Path) -> None:
    run("migrate", folder=tmp_path)
    answer = run("audit", "list", "--since", "yesterday", folder=tmp_path)
    assert answer.exit_code == 2
    assert "'yesterday' isn't a time; give 2026-11-01" in answer.stderr
