"""Idempotency-Key: a POST that is sent again is worked on once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Response
from sqlalchemy import text

from aggregator_api.core.settings import Settings
from aggregator_api.http.api.middleware import idempotency
from aggregator_api.http.api.middleware.idempotency import IdempotentRequests, StoredResponse
from aggregator_api.http.app import create_app
from tests.aggregator_api.generated_devices import Wires, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem


@pytest.fixture(scope="module")
def app(backend: None, tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("repeats")), Wires)


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with OperatorClient(app) as found:
        yield found


@pytest.fixture
def repeats(client: TestClient, app: FastAPI) -> IdempotentRequests:
    return IdempotentRequests(app.state.runtime.database)


def create(client: TestClient, name: str, key: str) -> Response:
    return post(client, "/v1/federations", key, {"name": name, "plan": tiny_plan().model_dump(mode="json")})


def post(client: TestClient, path: str, key: str, body: Any = None) -> Response:
    return client.post(path, json=body, headers={"Idempotency-Key": key})


def test_a_repeated_request_gets_the_first_answer(client: TestClient) -> None:
    first = create(client, "once", "k1")
    assert first.status_code == 201
    again = create(client, "once", "k1")
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert "idempotency-replayed" not in first.headers
    problem(create(client, "once", "k2"), 409)  # another key is another request
    # so is a refusal: it is the answer
    refused = post(client, "/v1/federations/once/resume", "k3")
    client.post("/v1/federations/once/pause")
    assert post(client, "/v1/federations/once/resume", "k3").content == refused.content
    assert client.get("/v1/federations/once").json()["status"] == "paused"


def test_a_key_is_for_one_request(client: TestClient) -> None:
    assert create(client, "one", "k4").status_code == 201
    assert "another request" in problem(create(client, "two", "k4"), 409)["detail"]
    assert "another request" in problem(post(client, "/v1/federations/one/pause", "k4"), 409)["detail"]
    assert client.get("/v1/federations/two").status_code == 404
    assert client.get("/v1/federations/one").json()["status"] == "running"


def test_keys_belong_to_their_caller(client: TestClient) -> None:
    made = client.post("/v1/keys", json={"name": "other", "scopes": ["operator"]}).json()["key"]
    assert create(client, "mine", "k5").status_code == 201
    other = {"Idempotency-Key": "k5", "Authorization": f"Bearer {made}"}
    assert client.post("/v1/federations/mine/pause", headers=other).status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 129, "a b", "ÿ"])
def test_what_is_no_key_is_refused(client: TestClient, key: str) -> None:
    answer = client.post("/v1/keys", json={}, headers={"Idempotency-Key": key.encode("latin-1")})
    assert "Idempotency-Key" in problem(answer, 422)["detail"]


def test_a_secret_is_not_kept(client: TestClient, app: FastAPI) -> None:
    body = {"name": "secret", "scopes": ["read"]}
    made = post(client, "/v1/keys", "k6", body)
    assert made.status_code == 201
    assert "shown once" in problem(post(client, "/v1/keys", "k6", body), 409)["detail"]
    names = [key["name"] for key in client.get("/v1/keys").json()["items"]]
    assert names.count("secret") == 1
    with app.state.runtime.database.read() as session:
        rows = str(session.execute(text("SELECT * FROM idempotent_requests")).all())
    assert "k6" in rows
    assert made.json()["key"].split("_", 2)[2] not in rows


def test_a_request_that_is_worked_on_is_not_begun_again(repeats: IdempotentRequests) -> None:
    assert repeats.begin("me", "k", "a" * 64) is None
    with pytest.raises(idempotency.ConflictError, match="in progress"):
        repeats.begin("me", "k", "a" * 64)
    assert repeats.begin("you", "k", "a" * 64) is None
    answer = StoredResponse(201, {"content-type": "application/json", "x-other": "y"}, b"{}")
    repeats.finish("me", "k", answer)
    kept = repeats.begin("me", "k", "a" * 64)
    assert kept is not None
    assert (kept.status, kept.body, kept.headers["content-type"]) == (201, b"{}", "application/json")
    assert "x-other" not in kept.headers


@pytest.mark.parametrize("status", [500, 503, 429, 401])
def test_an_answer_that_may_change_is_not_kept(repeats: IdempotentRequests, status: int) -> None:
    key = f"later-{status}"
    assert repeats.begin("me", key, "a" * 64) is None
    repeats.finish("me", key, StoredResponse(status, {}, b""))
    assert repeats.begin("me", key, "a" * 64) is None


def test_answers_are_forgotten_after_a_day_and_lost_requests_after_minutes(
    repeats: IdempotentRequests, app: FastAPI
) -> None:
    for key in ("kept", "old", "lost", "to come"):
        repeats.begin("she", key, "a" * 64)
    for key in ("kept", "old"):
        repeats.finish("she", key, StoredResponse(200, {}, b"ok"))
    ages = {"old": idempotency.RETENTION_S + 1, "lost": idempotency.STALE_AFTER_S + 1, "to come": -3653 * 86_400}
    with app.state.runtime.database.write() as session:
        for key, age in ages.items():
            values = {"then": time.time() - age, "key": key}
            session.execute(text("UPDATE idempotent_requests SET created_at = :then WHERE key = :key"), values)
    assert repeats.begin("she", "kept", "a" * 64) is not None
    assert repeats.begin("she", "old", "b" * 64) is None
    assert repeats.begin("she", "lost", "a" * 64) is None
    assert repeats.begin("she", "to come", "a" * 64) is None  # lost as well, before the clock was set back


def test_answers_are_bounded(repeats: IdempotentRequests, app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MAX_STORED", 5)
    for n in range(12):
        repeats.begin("they", f"n{n}", "a" * 64)
        repeats.finish("they", f"n{n}", StoredResponse(200, {}, b"ok"))
    with app.state.runtime.database.read() as session:
        assert session.execute(text("SELECT count(*) FROM idempotent_requests WHERE status = 200")).scalar() == 5
    assert repeats.begin("they", "n11", "a" * 64) is not None


def test_a_request_that_fails_in_the_server_may_be_tried_again(
    app: FastAPI, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("the disk is full")

    careless = OperatorClient(app, raise_server_exceptions=False).show_key()
    with monkeypatch.context() as patch:
        patch.setattr("aggregator_api.federations.service.FederationService.create", broken)
        problem(create(careless, "twice", "k9"), 500)
    assert create(careless, "twice", "k9").status_code == 201


def test_without_a_caller_the_header_means_nothing(tmp_path: Path) -> None:
    with OperatorClient(create_app(Settings(data_dir=tmp_path), Wires)) as client:
        for _ in range(2):
            answer = client.post("/v1/enrol", json={}, headers={"Idempotency-Key": "x"})
            assert "idempotency-replayed" not in answer.headers
            problem(answer, 422)
