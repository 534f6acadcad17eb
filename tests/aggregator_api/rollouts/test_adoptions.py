"""What devices say about models that they might have used: who sees it, and the score of a version that follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from federation.protocol import topics
from federation.protocol.messages import AdoptionReport, DeviceStatus, VersionScore, write
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Wires, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient

HERE = f"/v1/federations/{FEDERATION}"
CONSTANT = "it answers 'walking' whatever it sees"


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    """A server with a federation of two rounds."""
    return create_app(Settings(data_dir=tmp_path, aggregation_process=False, chunk_bytes=1024), Wires)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with OperatorClient(app) as found:
        body = {"name": FEDERATION, "plan": tiny_plan(rounds=2).model_dump(mode="json")}
        assert found.post("/v1/federations", json=body).status_code == 201
        yield found


class Server(Bench):
    """The bench of a server that REST serves."""

    def __init__(self, app: FastAPI) -> None:
        self.runtime = app.state.runtime
        self.wires = self.runtime.transport

    def judged(self, device: str, number: int, answer: str, **said: Any) -> None:
        """Publish a device's status with its last word about a model."""
        report = {"instance": self.now().instance, "round": number, "source": "global", "answer": answer, **said}
        status = DeviceStatus(state="idle", examples=10, adoption=AdoptionReport.model_validate(report))
        self.send(topics.status(FEDERATION, device), write(status))

    def play(self, number: int, **metrics: dict[str, float]) -> None:
        """Play a round of devices a and b; each reports its figures."""
        for device in ("a", "b"):
            self.say(device, "ready")
        wait_for(lambda: self.collects(number))
        for device in ("a", "b"):
            update = self.update_of(device, metrics=metrics.get(device, {}))
            assert self.upload(update).status == "accepted"
        wait_for(lambda: not self.collects(number) and self.now().state != "aggregating")

    def score(self) -> VersionScore | None:
        """Return the score that is announced."""
        announced = self.now()
        assert announced.model is not None
        return announced.model.score


def figures(
    before: float, after: float, constant: float = 0.1, works: tuple[float, float] = (1, 1)
) -> dict[str, float]:
    """What a device measures whose holdout can tell."""
    return {
        "macro_f1_before": before,
        "macro_f1_after": after,
        "macro_f1_trivial": constant,
        "works_before": works[0],
        "works_after": works[1],
    }


def test_a_failed_adoption_is_seen_in_the_device_its_history_the_journal_and_the_metrics(
    app: FastAPI, client: TestClient
) -> None:
    server = Server(app)
    server.play(1)
    assert client.get(f"{HERE}/devices").json()["items"][0]["adoption"] is None
    for _ in range(2):  # a device repeats it with every status
        server.judged("a", 1, "failed", source="personalized", score=0.1, trivial=0.1, reason=CONSTANT)
    server.judged("b", 1, "adopted", source="personalized", score=0.9, trivial=0.1)
    device = client.get(f"{HERE}/devices/a").json()
    assert (device["adoption"], device["adoption_reason"]) == ("failed", CONSTANT)
    (adoption,) = client.get(f"{HERE}/devices/a/history").json()["items"][0]["adoptions"]
    assert {name: adoption[name] for name in adoption if name != "recorded_at"} == {
        "source": "personalized",
        "answer": "failed",
        "metric": "macro_f1",
        "score": 0.1,
        "trivial": 0.1,
        "reason": CONSTANT,
    }
    events = [event for event in client.get(f"{HERE}/journal").json()["items"] if event["kind"].startswith("adopt")]
    told = [(event["kind"], event["device"], event["round_number"], event["detail"]) for event in events]
    assert told == [("adoption.failed", "a", 1, CONSTANT), ("adoption.adopted", "b", 1, "")]
    text = client.get("/metrics").text
    assert 'gaitway_adoptions_total{answer="failed",federation="walk"} 1.0' in text
    assert 'gaitway_adoption_devices{answer="failed",federation="walk"} 1.0' in text
    server.judged("a", 1, "adopted", source="global", score=0.9, trivial=0.1)
    assert 'gaitway_adoption_devices{answer="adopted",federation="walk"} 2.0' in client.get("/metrics").text
    assert len(client.get(f"{HERE}/devices/a/history").json()["items"][0]["adoptions"]) == 2


def test_reports_of_other_instances_and_of_rounds_to_come_are_ignored(app: FastAPI, client: TestClient) -> None:
    server = Server(app)
    server.play(1)
    server.judged("a", 7, "failed")
    server.judged("a", 1, "failed", instance="f" * 32)
    server.judged("stranger", 1, "failed", reason="x" * 500)  # it enrols with its status, as any may here
    assert client.get(f"{HERE}/devices/a").json()["adoption"] is None
    kinds = [event["kind"] for event in client.get(f"{HERE}/journal").json()["items"]]
    assert kinds.count("adoption.failed") == 1


def test_a_version_has_the_score_of_the_models_that_it_was_made_from_until_it_is_measured_itself(
    app: FastAPI, client: TestClient
) -> None:
    server = Server(app)
    assert server.score() is None
    server.play(1, a=figures(0.1, 0.7, works=(0, 1)), b=figures(0.2, 0.8, constant=0.3, works=(0, 1)))
    made_from = VersionScore(value=750_000, trivial=200_000, devices=2, working=2, measured="updates")
    assert server.score() == made_from
    wait_for(lambda: server.wires.invitations("a")[-1].round == 2)
    assert server.wires.invitations("a")[-1].model.score == made_from
    first, second = client.get(f"{HERE}/models").json()["items"]
    assert first["score"] == {
        "metric": "macro_f1",
        "value": pytest.approx(0.15),
        "trivial": 0.2,
        "devices": 2,
        "working": 0,
        "measured": "version",
    }
    assert second["score"]["measured"] == "updates"
    server.play(2, a=figures(0.5, 0.9), b=figures(0.7, 0.9, works=(0, 1)))
    second = client.get(f"{HERE}/models/1").json()
    assert second["score"] == {
        "metric": "macro_f1",
        "value": pytest.approx(0.6),
        "trivial": 0.1,
        "devices": 2,
        "working": 1,
        "measured": "version",
    }


def test_devices_that_judge_the_last_version_make_its_score(app: FastAPI, client: TestClient) -> None:
    server = Server(app)
    for number in (1, 2):
        server.play(number, a=figures(0.1, 0.9), b=figures(0.1, 0.9))
    server.judged("a", 2, "failed", score=0.1, trivial=0.1)
    assert server.score() == VersionScore(
        value=100_000, trivial=100_000, devices=1, working=0, measured="version"
    )  # half of those that it was made from have spoken
    server.judged("b", 2, "undecided", score=0.3)  # its holdout cannot tell
    server.judged("c", 2, "refused", score=0.8, trivial=0.2)  # it works, but is worse than c's present one
    found = server.score()
    assert found is not None
    assert (found.value, found.devices, found.working, found.is_sound) == (450_000, 2, 1, False)


def test_nonsense_and_devices_that_cannot_tell_count_for_nothing(app: FastAPI, client: TestClient) -> None:
    server = Server(app)
    server.play(1, a={"macro_f1_after": 0.9}, b=figures(0.1, 1e30, works=(0, 1)))
    assert server.score() is None
