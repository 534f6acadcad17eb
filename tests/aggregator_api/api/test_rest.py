"""The REST interface, asked through FastAPI's test client."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from fastapi import FastAPI

from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from aggregator_api.runtime import Runtime
from federation import wire
from federation.protocol import topics
from federation.training.forward import initial_client, initial_model
from models import build
from tests.aggregator_api.bench import stream_access
from tests.aggregator_api.generated_devices import FEDERATION, Wires, status, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem

HERE = f"/v1/federations/{FEDERATION}"


@pytest.fixture(scope="module")
def app(backend: None, tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("rest"), max_body_bytes=20_000), Wires)


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    """A server with one federation, round 1 open for devices a and b."""
    with OperatorClient(app) as found:
        created = found.post("/v1/federations", json=body())
        assert created.status_code == 201, created.text
        assert created.headers["location"] == HERE
        runtime: Runtime = app.state.runtime
        for device in ("a", "b"):
            runtime.ingest.handle(topics.status(FEDERATION, device), status("ready"))
        yield found


def body(name: str = FEDERATION, **changes: Any) -> dict[str, Any]:
    """Return a request that creates a federation; dicts in `changes` are merged into the plan's."""
    plan = tiny_plan().model_dump(mode="json")
    for key, value in changes.items():
        plan[key] = {**plan[key], **value} if isinstance(value, dict) else value
    return {"name": name, "plan": plan}


def test_a_new_federation_is_described_with_its_initial_model(client: TestClient) -> None:
    described = client.get(HERE).json()
    assert (described["status"], described["round"], described["round_phase"]) == ("running", 1, "collecting")
    assert (described["devices"], described["devices_online"]) == (2, 2)
    assert described["plan"] == tiny_plan().model_dump(mode="json")
    # the initial model follows from the plan alone
    options = tiny_plan().model.options
    expected = initial_client(initial_model(lambda: build("har_cnn", classes=2, **options), 0))
    data = wire.encode({"params": expected.params})
    assert described["model"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert client.get(described["model"]["url"]).content == data
    assert described["model"]["aliases"] == ["latest", "stable"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"name": "fedavgg"}}, "did you mean 'fedavg'"),
        ({"method": {"mu": 1}}, "mu"),
        ({"model": {"name": "har_cmm"}}, "har_cnn"),
        ({"model": {"options": {"channels": [3, 3], "feature_dim": 8}}}, "multiples of 8"),
        ({"model": {"options": {"nonsense": 1}}}, "nonsense"),
        ({"labels": ["still", "walking", "running"]}, "plan.labels has 3"),
        ({"labels": ["still", "still"]}, "twice"),
        ({"training": {"feature_dim": 192}}, "have 8 dimensions"),
        ({"training": {"lr": -1}}, "plan.training.lr"),
        ({"method": {"name": "fedali"}}, "has no ALP layer"),
        ({"model": {"options": {"channels": [8000, 8000], "feature_dim": 8}}}, "max_model_bytes"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_in_words(client: TestClient, changes: Any, words: str) -> None:
    request = body("other", **{key: value for key, value in changes.items() if key != "surprise"})
    if "surprise" in changes:
        request["plan"]["surprise"] = 1
    found = problem(client.post("/v1/federations", json=request), 422)
    assert words in found["detail"], found
    assert client.get("/v1/federations/other").status_code == 404


def test_a_method_with_prototypes_is_accepted_with_an_alp_model(client: TestClient) -> None:
    options = {"channels": [8, 8], "feature_dim": 8, "hidden": 8, "prototypes": [4]}
    request = body("prototypes", model={"name": "har_cnn_alp", "options": options}, method={"name": "fedali"})
    assert client.post("/v1/federations", json=request).status_code == 201


def test_errors_are_problems(client: TestClient) -> None:
    assert "already" in problem(client.post("/v1/federations", json=body()), 409)["detail"]
    problem(client.post("/v1/federations", json=body("no/slash")), 422)
    problem(client.post("/v1/federations", content=b"{", headers={"content-type": "application/json"}), 422)
    problem(client.post("/v1/federations", json={"name": "x" * 30_000}), 413)
    problem(client.get("/v1/federations/none"), 404)
    problem(client.post("/v1/federations/none/pause"), 404)
    problem(client.get(f"{HERE}/rounds/99"), 404)
    problem(client.get(f"{HERE}/rounds/zero"), 422)
    problem(client.get(f"{HERE}/devices", params={"limit": 0}), 422)
    problem(client.get("/nowhere"), 404)
    problem(client.delete("/v1/federations"), 405)
    problem(client.get(f"/v1/blobs/{'0' * 64}"), 404)
    problem(client.get("/v1/blobs/..%2f..%2fetc"), 404)
    problem(client.get("/v1/blobs/nothex"), 422)
    problem(client.get(f"{HERE}/events", headers={"Last-Event-ID": "x"}), 422)


def test_a_body_without_a_length_is_bounded_too(client: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 1000

    problem(client.post("/v1/federations", content=pieces()), 413)


def test_a_parameter_that_a_route_does_not_have_is_refused(client: TestClient) -> None:
    found = problem(client.get(f"{HERE}/devices", params={"limti": 3}), 422)
    assert found["detail"] == "query parameter 'limti': known here: cursor, enrolment, limit, suspended, tag"
    assert "none is known here" in problem(client.get(HERE, params={"limit": 3}), 422)["detail"]
    twice = problem(client.get(f"{HERE}/devices", params={"tag": ["a", "b"]}), 422)
    assert twice["detail"] == "query parameter 'tag': given more than once; send it once"
    assert client.get("/healthz", params={"verbose": 1}).status_code == 200


def test_a_wrong_method_is_told_every_right_one(client: TestClient) -> None:
    for path, methods in [
        ("/v1/federations", "GET, POST"),
        (HERE, "DELETE, GET, PATCH"),
        (f"{HERE}/aliases/a", "DELETE, PUT"),
    ]:
        answer = client.request("OPTIONS", path)
        problem(answer, 405)
        assert answer.headers["allow"] == methods


def test_listings_come_in_pages(client: TestClient) -> None:
    seen: list[str] = []
    cursor: int | None = 0
    while cursor is not None:
        page = client.get(f"{HERE}/devices", params={"cursor": cursor, "limit": 1}).json()
        seen += [device["name"] for device in page["items"]]
        assert len(page["items"]) == 1
        cursor = page["next_cursor"]
    assert seen == ["a", "b"]
    assert client.get("/v1/federations", params={"limit": 1}).json()["items"][0]["name"] == FEDERATION


def test_a_round_and_its_participants(client: TestClient) -> None:
    (listed,) = client.get(f"{HERE}/rounds").json()["items"]
    detail = client.get(f"{HERE}/rounds/1").json()
    assert listed.items() <= detail.items()
    assert (detail["phase"], detail["invited"], detail["received"]) == ("collecting", 2, 0)
    parts = client.get(f"{HERE}/rounds/1/participants").json()["items"]
    assert [(part["device"], part["outcome"], part["sha256"]) for part in parts] == [
        ("a", "waiting", None),
        ("b", "waiting", None),
    ]
    assert client.get(f"{HERE}/metrics").json() == {"items": [], "next_cursor": None}


def test_a_model_can_be_downloaded_in_parts(client: TestClient) -> None:
    (model,) = client.get(f"{HERE}/models").json()["items"]
    whole = client.get(model["url"])
    assert len(whole.content) == model["size"]
    assert hashlib.sha256(whole.content).hexdigest() == model["sha256"]
    assert whole.headers["etag"] == f'"{model["sha256"]}"'
    assert "immutable" in whole.headers["cache-control"]
    head = client.head(model["url"])
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(model["size"]))
    size = model["size"]
    for asked, part in [("0-9", slice(0, 10)), (f"{size - 5}-", slice(size - 5, size)), ("-7", slice(size - 7, size))]:
        answer = client.get(model["url"], headers={"Range": f"bytes={asked}"})
        assert (answer.status_code, answer.content) == (206, whole.content[part])
        assert answer.headers["content-range"] == f"bytes {part.start}-{part.stop - 1}/{size}"
    beyond = client.get(model["url"], headers={"Range": f"bytes={size}-"})
    problem(beyond, 416)
    assert beyond.headers["content-range"] == f"bytes */{size}"
    cached = client.get(model["url"], headers={"If-None-Match": whole.headers["etag"]})
    assert (cached.status_code, cached.content) == (304, b"")


def test_what_a_server_keeps_to_itself_cannot_be_downloaded(client: TestClient, app: FastAPI) -> None:
    private = app.state.runtime.blobs.put(b"somebody's update")
    problem(client.get(f"/v1/blobs/{private.sha256}"), 404)


def test_pause_resume_and_stop(client: TestClient, app: FastAPI) -> None:
    assert client.post("/v1/federations", json=body("steered")).status_code == 201
    there = "/v1/federations/steered"
    problem(client.post(f"{there}/resume"), 409)
    assert client.post(f"{there}/pause").json()["status"] == "paused"
    problem(client.post(f"{there}/pause"), 409)
    for device in ("a", "b"):
        app.state.runtime.ingest.handle(topics.status("steered", device), status("ready"))
    assert client.get(there).json()["round"] == 0  # nothing opens while it is paused
    assert client.post(f"{there}/resume").json()["round"] == 1
    assert client.post(f"{there}/stop").json()["status"] == "stopped"
    detail = client.get(f"{there}/rounds/1").json()
    assert (detail["phase"], detail["reason"]) == ("failed", "stopped by the operator")
    for verb in ("pause", "resume", "stop"):
        problem(client.post(f"{there}/{verb}"), 409)


def test_events_go_on_after_the_last_one_seen(client: TestClient, app: FastAPI) -> None:
    async def first(after: int, count: int) -> list[str]:
        found: list[str] = []
        access = stream_access(app.state.runtime)
        async with aclosing(app.state.event_feed.stream(FEDERATION, after, access)) as source:
            while len(found) < count:
                found += filter(None, (await anext(source)).decode().split("\n\n"))
        return found[:count]

    messages = asyncio.run(first(0, 3))
    assert "event: federation.created\n" in messages[0]
    ids = [int(message.split("\n")[0].removeprefix("id: ")) for message in messages]
    assert ids == sorted(set(ids))
    assert asyncio.run(first(ids[0], 2)) == messages[1:]
