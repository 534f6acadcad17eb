"""Rollouts as an operator meets them: REST, the journal, Prometheus, and the setting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from federation.protocol import topics
from federation.protocol.messages import DeviceStatus, ReleaseReport, write
from tests.aggregator_api.generated_devices import FEDERATION, Wires, status, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem

HERE = f"/v1/federations/{FEDERATION}"
ROLLOUTS = f"{HERE}/rollouts"


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    return create_app(Settings(data_dir=tmp_path, chunk_bytes=1024, aggregation_process=False), Wires)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    """A server with a federation that waits for a third device, and has the initial model."""
    with OperatorClient(app) as found:
        body = {"name": FEDERATION, "plan": tiny_plan(clients=3, minimum_clients=3).model_dump(mode="json")}
        assert found.post("/v1/federations", json=body).status_code == 201
        for device in ("a", "b"):
            app.state.runtime.ingest.handle(topics.status(FEDERATION, device), status("ready"))
        yield found


def answered(app: FastAPI, client: TestClient, device: str, answer: str, reason: str = "") -> None:
    instance = client.get(HERE).json()["instance"]
    report = {"instance": instance, "rollout": 1, "answer": answer, "reason": reason}
    message = DeviceStatus(state="ready", release=ReleaseReport.model_validate(report))
    app.state.runtime.ingest.handle(topics.status(FEDERATION, device), write(message))


def switched_on(client: TestClient, **settings: Any) -> dict[str, Any]:
    body = {"rollout": {"mode": "manual", "waves": [1.0], **settings}}
    found: dict[str, Any] = client.patch(HERE, json=body).json()
    return found


def test_an_operator_switches_rollouts_on_starts_one_reads_it_and_halts_it(app: FastAPI, client: TestClient) -> None:
    assert "rollout.mode is off" in problem(client.post(ROLLOUTS, json={}), 409)["detail"]
    assert switched_on(client)["plan"]["rollout"]["mode"] == "manual"
    begun = client.post(ROLLOUTS, json={"version": 0})
    assert (begun.status_code, begun.headers["Location"]) == (201, f"{ROLLOUTS}/1")
    assert begun.json()["progress"] == [
        {
            "share": 1.0,
            "tags": [],
            "devices": 2,
            "pending": 2,
            "adopted": 0,
            "kept": 0,
            "refused": 0,
            "failed": 0,
            "rolled_back": 0,
        }
    ]
    assert "rollout 1 is rolling" in problem(client.post(ROLLOUTS, json={}), 409)["detail"]
    assert "rollout 1 is rolling" in problem(client.patch(HERE, json={"rollout": {"mode": "off"}}), 409)["detail"]
    problem(client.post(f"{ROLLOUTS}/2/pause"), 404)
    problem(client.post(ROLLOUTS, json={"version": "0"}), 422)
    assert client.post(f"{ROLLOUTS}/1/pause").json()["phase"] == "paused"
    assert "the rollout is paused" in problem(client.post(f"{ROLLOUTS}/1/pause"), 409)["detail"]
    assert client.post(f"{ROLLOUTS}/1/resume").json()["phase"] == "rolling"
    answered(app, client, "a", "failed", "it gives NaN")
    answered(app, client, "b", "adopted")
    failures = client.get(f"{ROLLOUTS}/1/devices?answer=failed").json()["items"]
    assert [(one["device"], one["wave"], one["reason"]) for one in failures] == [("a", 1, "it gives NaN")]
    halted = client.post(f"{ROLLOUTS}/1/halt").json()
    assert (halted["phase"], halted["reason"]) == ("halted", "halted by the operator")
    problem(client.post(f"{ROLLOUTS}/1/halt"), 409)
    assert [one["phase"] for one in client.get(ROLLOUTS).json()["items"]] == ["halted"]
    kinds = [event["kind"] for event in client.get(f"{HERE}/journal").json()["items"]]
    said = [kind for kind in kinds if kind.startswith("rollout.")]
    assert said == [f"rollout.{kind}" for kind in ("started", "paused", "rolling", "failed", "adopted", "halted")]
    text = client.get("/metrics").text
    for line in (
        'gaitway_rollouts_total{federation="walk",outcome="halted"} 1.0',
        'gaitway_rollout_devices{answer="failed",federation="walk"} 1.0',
        'gaitway_rollout_wave{federation="walk"} 1.0',
    ):
        assert line in text
    assert switched_on(client, mode="off")["plan"]["rollout"]["mode"] == "off"


def test_what_cannot_be_released_is_said(client: TestClient) -> None:
    plan = tiny_plan(method="fedper").model_dump(mode="json")
    body = {"name": "personal", "plan": {**plan, "rollout": {"mode": "manual"}}}
    assert "fedper has no global model" in problem(client.post("/v1/federations", json=body), 422)["detail"]
    assert client.post("/v1/federations", json={"name": "personal", "plan": plan}).status_code == 201
    wanted = {"rollout": {"mode": "automatic"}}
    assert "no global model" in problem(client.patch("/v1/federations/personal", json=wanted), 422)["detail"]
    wrong = {"rollout": {"waves": [0.5, 0.2]}}
    assert "shares must grow" in problem(client.patch(HERE, json=wrong), 422)["detail"]


def test_the_names_that_rollouts_move_are_theirs(client: TestClient) -> None:
    assert client.put(f"{HERE}/aliases/canary", json={"version": 0}).status_code == 200
    switched_on(client)
    for answer in (
        client.put(f"{HERE}/aliases/released", json={"version": 0}),
        client.delete(f"{HERE}/aliases/canary"),
    ):
        assert "rollouts move the alias" in problem(answer, 409)["detail"]
