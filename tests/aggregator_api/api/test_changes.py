"""What an operator changes while a federation lives: round settings, names of models; and what a device did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from aggregator_api.core.settings import Settings
from aggregator_api.federations.service import get_federation
from aggregator_api.http.app import create_app
from tests.aggregator_api.bench import Bench, coordinator_beside, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Wires, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem

HERE = f"/v1/federations/{FEDERATION}"


class Server(Bench):
    """A bench that is asked over REST."""

    def __init__(self, app: FastAPI) -> None:
        self.runtime = app.state.runtime
        self.wires = app.state.runtime.transport


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    return create_app(Settings(data_dir=tmp_path, chunk_bytes=1024, aggregation_process=False), Wires)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with OperatorClient(app) as create:
        yield create


def create(client: TestClient, **rounds: Any) -> None:
    body = {"name": FEDERATION, "plan": tiny_plan(**rounds).model_dump(mode="json")}
    assert client.post("/v1/federations", json=body).status_code == 201


def change(client: TestClient, **rounds: Any) -> Any:
    return client.patch(HERE, json={"rounds": rounds})


def play(server: Server, *devices: str) -> None:
    """Let the devices take part in the present round, and wait until the next one is open, or there is none."""
    number = server.now().round
    for device in devices:
        assert server.upload(server.update_of(device)).status == "accepted"

    def over() -> bool:
        now = server.now()
        return now.state == "finished" or (now.state == "collecting" and now.round != number)

    wait_for(over)


def test_what_is_left_out_stays(client: TestClient) -> None:
    create(client, rounds=5)
    before = client.get(HERE).json()["plan"]
    after = change(client, deadline_s=60, late="next").json()["plan"]
    assert after["rounds"] == {**before["rounds"], "deadline_s": 60.0, "late": "next"}
    assert {**after, "rounds": before["rounds"]} == before
    assert change(client, deadline_s=None).json()["plan"]["rounds"]["deadline_s"] is None
    kinds = [event["kind"] for event in client.get(f"{HERE}/journal").json()["items"]]
    assert kinds.count("federation.changed") == 2


IMPOSSIBLE: tuple[tuple[dict[str, Any], str], ...] = (
    ({"rounds": {"deadline_s": -1}}, "rounds.deadline_s"),
    ({"rounds": {"rounds": 0}}, "rounds.rounds"),
    ({"rounds": {"speed": 1}}, "rounds.speed"),
    ({"rounds": {"clients_per_round": 1}}, "1 invited devices can never send 2 updates"),
    ({"rounds": {}, "model": {"name": "hart"}}, "model cannot change"),
    ({"rounds": {}, "labels": ["a", "b"], "training": {}}, "labels, training cannot change"),
    ({}, "rounds"),
)


def test_what_cannot_change_is_said(client: TestClient) -> None:
    create(client)
    before = client.get(HERE).json()
    for body, words in IMPOSSIBLE:
        assert words in problem(client.patch(HERE, json=body), 422)["detail"]
    assert client.get(HERE).json() == before


def test_changes_of_nothing_and_of_what_is_over(client: TestClient) -> None:
    problem(client.patch("/v1/federations/none", json={"rounds": {}}), 404)
    create(client)
    client.post(f"{HERE}/stop")
    assert "is stopped" in problem(change(client, rounds=9), 409)["detail"]


def test_a_lower_quorum_ends_the_wait_of_the_open_round(client: TestClient, app: FastAPI) -> None:
    create(client, rounds=2, clients=2)
    server = Server(app)
    for device in ("a", "b"):
        server.say(device, "ready")
    server.upload(server.update_of("a"))
    assert change(client, clients_per_round=1, minimum_clients=1).status_code == 200
    wait_for(lambda: client.get(f"{HERE}/rounds/1").json()["phase"] == "published")


def test_a_deadline_holds_for_the_open_round_and_is_announced(client: TestClient, app: FastAPI) -> None:
    create(client)
    server = Server(app)
    for device in ("a", "b"):
        server.say(device, "ready")
    assert server.now().deadline is None
    change(client, deadline_s=1000)
    opened = client.get(f"{HERE}/rounds/1").json()
    assert opened["deadline_at"] == opened["opened_at"] + 1000
    assert server.wires.announcements()[-1].deadline == opened["deadline_at"]
    change(client, deadline_s=None)
    assert server.wires.announcements()[-1].deadline is None


def test_fewer_rounds_end_a_federation_and_never_undo_one(client: TestClient, app: FastAPI) -> None:
    create(client, rounds=5)
    server = Server(app)
    for device in ("a", "b"):
        server.say(device, "ready")
    play(server, "a", "b")
    assert server.now().round == 2
    assert "2 rounds were published or are open" in problem(change(client, rounds=1), 409)["detail"]
    assert change(client, rounds=2).json()["status"] == "running"  # the second is still open
    play(server, "a", "b")
    wait_for(lambda: client.get(HERE).json()["status"] == "finished")


def test_a_paused_federation_is_changed_without_going_on(client: TestClient, app: FastAPI) -> None:
    create(client, clients=2)
    server = Server(app)
    for device in ("a", "b"):
        server.say(device, "ready")
    server.upload(server.update_of("a"))
    client.post(f"{HERE}/pause")
    change(client, clients_per_round=1, minimum_clients=1)
    assert client.get(f"{HERE}/rounds/1").json()["phase"] == "collecting"
    client.post(f"{HERE}/resume")
    wait_for(lambda: client.get(f"{HERE}/rounds/1").json()["phase"] == "published")


def test_another_server_process_notices_the_change(client: TestClient, app: FastAPI) -> None:
    create(client)
    runtime = app.state.runtime
    other = coordinator_beside(runtime)
    with runtime.database.read() as session:
        assert other.contract(get_federation(session, FEDERATION)).plan.rounds.late == "drop"
    change(client, late="next")
    with runtime.database.read() as session:
        assert other.contract(get_federation(session, FEDERATION)).plan.rounds.late == "next"


def test_names_move_over_the_versions(client: TestClient, app: FastAPI) -> None:
    create(client, rounds=3)
    server = Server(app)
    for device in ("a", "b"):
        server.say(device, "ready")
    play(server, "a", "b")
    assert problem(client.put(f"{HERE}/aliases/latest", json={"version": 0}), 409)["detail"].startswith(
        "a round is open"
    )
    assert client.put(f"{HERE}/aliases/canary", json={"version": 1}).json()["aliases"] == ["canary", "latest"]
    back = {"version": 0}
    refused = problem(client.put(f"{HERE}/aliases/canary", json=back), 409)["detail"]
    assert "0 of the 2 devices that are needed have measured it" in refused
    problem(client.put(f"{HERE}/aliases/canary", json={**back, "force": True}), 422)
    forced = {**back, "force": True, "reason": "a trial"}
    assert client.put(f"{HERE}/aliases/canary", json=forced).json()["aliases"] == ["canary", "stable"]
    assert {one["alias"]: one["version"] for one in client.get(f"{HERE}/aliases").json()} == {
        "canary": 0,
        "latest": 1,
        "stable": 0,
    }
    assert client.delete(f"{HERE}/aliases/canary").status_code == 204
    problem(client.delete(f"{HERE}/aliases/canary"), 404)
    problem(client.delete(f"{HERE}/aliases/stable"), 409)
    problem(client.put(f"{HERE}/aliases/canary", json={"version": 7}), 404)
    problem(client.put(f"{HERE}/aliases/Not-a-name", json={"version": 0}), 422)
    problem(client.get(f"{HERE}/models/7"), 404)
    assert client.get(f"{HERE}/models/1").json() == client.get(f"{HERE}/models").json()["items"][1]


def test_the_names_of_a_federation_are_bounded(client: TestClient) -> None:
    create(client)
    codes = [client.put(f"{HERE}/aliases/n{n}", json={"version": 0}).status_code for n in range(32)]
    assert codes == [200] * 30 + [409] * 2  # `latest` and `stable` are two of the 32
    assert client.put(f"{HERE}/aliases/n0", json={"version": 0}).status_code == 200


def test_the_next_round_starts_from_where_latest_was_moved(client: TestClient, app: FastAPI) -> None:
    create(client, rounds=3)
    server = Server(app)
    for device in ("a", "b"):
        server.say(device, "ready")
    play(server, "a", "b")
    server.say("a", "offline")  # no third round without it
    server.say("b", "offline")
    client.post(f"{HERE}/pause")
    change(client, minimum_clients=1)
    server.upload(server.update_of("a"))
    server.upload(server.update_of("b"))
    client.post(f"{HERE}/resume")
    wait_for(lambda: client.get(f"{HERE}/rounds/2").json()["phase"] == "published")
    versions = client.get(f"{HERE}/models").json()["items"]
    back = {"version": 0, "force": True, "reason": "a rollback"}
    assert client.put(f"{HERE}/aliases/latest", json=back).status_code == 200
    assert server.wires.announcements()[-1].model is not None
    assert server.wires.announcements()[-1].model.sha256 == versions[0]["sha256"]
    for device in ("a", "b"):
        server.say(device, "ready")
    assert client.get(f"{HERE}/rounds/3").json()["base_model"] == versions[0]["sha256"]
    play(server, "a", "b")
    wait_for(lambda: client.get(HERE).json()["status"] == "finished")
    assert [one["version"] for one in client.get(f"{HERE}/models").json()["items"]] == [0, 1, 2, 3]


def test_a_devices_history_in_one_call(client: TestClient, app: FastAPI) -> None:
    create(client, rounds=2)
    server = Server(app)
    for device in ("a", "b"):
        server.say(device, "ready")
    nonsense = server.update_of("a", method="fedprox")
    server.refused(nonsense)
    server.upload(server.update_of("b"))
    told = client.get(f"{HERE}/devices/b/history").json()
    assert (told["device"]["name"], told["device"]["enrolment"], told["next_cursor"]) == ("b", "open", None)
    (first,) = [one for one in told["items"] if one["round"] == 1]
    assert (first["invited"], first["outcome"], first["metrics"]) == (True, "received", {"loss": 0.5})
    assert [update["status"] for update in first["updates"]] == ["accepted"]
    bad, *_ = client.get(f"{HERE}/devices/a/history").json()["items"]
    assert [(update["status"], update["update_id"]) for update in bad["updates"]] == [
        ("quarantined", nonsense.manifest.update_id)
    ]
    assert "fedprox" in bad["updates"][0]["reason"]
    (listed,) = client.get(f"{HERE}/updates", params={"status": "quarantined"}).json()["items"]
    assert listed == bad["updates"][0]
    problem(client.get(f"{HERE}/devices/none/history"), 404)
    problem(client.get(f"{HERE}/devices/none"), 404)


def test_a_history_comes_in_pages(client: TestClient, app: FastAPI) -> None:
    create(client, rounds=3)
    server = Server(app)
    for device in ("a", "b"):
        server.say(device, "ready")
    for _ in range(3):
        play(server, "a", "b")
    seen, cursor = [], 0
    while cursor is not None:
        page = client.get(f"{HERE}/devices/a/history", params={"cursor": cursor, "limit": 1}).json()
        seen += [one["round"] for one in page["items"]]
        cursor = page["next_cursor"]
    assert seen == [1, 2, 3]
