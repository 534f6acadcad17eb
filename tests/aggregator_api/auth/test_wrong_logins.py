"""Whoever shows nothing good makes no writer wait: wrong keys, passwords, tokens and signatures write no row."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from aggregator_api.auth import api_keys
from aggregator_api.core.settings import Settings
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.app import create_app
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import AuditRow
from tests.aggregator_api.generated_devices import FEDERATION, Wires, tiny_plan
from tests.aggregator_api.http_client import TestClient, problem

AWAY = "198.51.100.7"
WRONG_KEY = f"gw_{'ab' * 6}_{'x' * 43}"
SIGNED = {"federation": FEDERATION, "device": "d", "signature": "A" * 86 + "=="}
WRONG: dict[str, dict[str, Any]] = {
    "login": {"url": "/login", "data": {"key": WRONG_KEY}, "headers": {"Origin": f"http://{AWAY}"}},
    "key": {"url": "/v1/keys", "json": {}, "headers": {"Authorization": f"Bearer {WRONG_KEY}"}},
    "no key": {"url": "/v1/keys", "json": {}},
    "enrol": {"url": "/v1/enrol", "json": {**SIGNED, "token": "gwt_guess", "public_key": "A" * 43 + "="}},
    "claim": {"url": "/v1/enrol/claim", "json": {**SIGNED, "issued_at": 1}},
    "token": {"url": "/v1/enrol/token", "json": {**SIGNED, "issued_at_ms": 1}},
}


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    found = create_app(Settings(data_dir=tmp_path, host="0.0.0.0", failed_keys_per_s=1000.0), Wires)
    with TestClient(found, host=AWAY) as client:
        client.runtime.federations.create(NewFederation(name=FEDERATION, plan=tiny_plan()))
        yield found


@pytest.mark.parametrize("kind", WRONG)
def test_nothing_is_written_for_what_is_wrong(app: FastAPI, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []
    write = Database.write

    def counted(database: Database) -> Any:
        if threading.current_thread().name != "inbox":  # which has work of its own
            writes.append(kind)
        return write(database)

    thief = TestClient(app, host=AWAY)
    monkeypatch.setattr(Database, "write", counted)
    asked = dict(WRONG[kind])
    answers = {thief.post(asked["url"], **{k: v for k, v in asked.items() if k != "url"}).status_code for _ in range(5)}
    assert answers == {401}
    assert writes == []
    monkeypatch.undo()
    app.state.runtime.refusals.flush(closing=True)
    with app.state.runtime.database.read() as session:
        found = session.scalars(select(AuditRow).where(AuditRow.address == AWAY)).all()
    assert [row.count for row in found] == [5]  # one line, with how often


def test_the_last_operators_key_does_not_revoke_itself(app: FastAPI, tmp_path: Path) -> None:
    key = (tmp_path / api_keys.OPERATOR_FILE).read_text().strip()
    own = api_keys.prefix_in(key)
    client = TestClient(app, host=AWAY, key=key)
    for other in ({"scopes": ["read"]}, {"scopes": ["operator"], "federation": FEDERATION}):
        assert client.post("/v1/keys", json={"name": "other", **other}).status_code == 201
    # one that is about to end would leave nobody in an hour
    assert (
        client.post("/v1/keys", json={"name": "brief", "scopes": ["operator"], "lifetime_s": 3600}).status_code == 201
    )
    refused = problem(client.post(f"/v1/keys/{own}/revoke"), 409)
    assert "is the last operator's key of this server" in refused["detail"]
    assert "python -m aggregator_api keys revoke" in refused["detail"]
    made = client.post("/v1/keys", json={"name": "next", "scopes": ["operator"]}).json()
    assert client.post(f"/v1/keys/{own}/revoke").status_code == 200
    client = TestClient(app, host=AWAY, key=made["key"])
    assert client.post(f"/v1/keys/{own}/revoke").status_code == 200  # twice changes nothing
    problem(client.post(f"/v1/keys/{made['id']}/revoke"), 409)
