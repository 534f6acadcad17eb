"""What the pages and REST show of a continuous federation, and how an operator takes a device's sums out there."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest

from aggregator_api.auth import api_keys
from aggregator_api.core.settings import Settings
from aggregator_api.federations import exports
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.app import create_app
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import continuous_plan, sends
from tests.aggregator_api.generated_devices import FEDERATION, Wires
from tests.aggregator_api.http_client import TestClient
from tests.aggregator_api.web.visitors import Visitor, key_of

HERE = f"/federations/{FEDERATION}"


class BenchOf(Bench):
    """Devices at a server that answers over HTTP too."""

    def __init__(self, server: TestClient) -> None:
        self.runtime = server.runtime
        assert isinstance(self.runtime.transport, Wires)
        self.wires = self.runtime.transport


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server with a continuous federation: a and b are in version 1, and a change of b waits."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("continuous"), aggregation_process=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exports, "onnx", lambda made: b"onnx")
        with TestClient(create_app(settings, Wires)) as client:
            client.runtime.federations.create(
                NewFederation(name=FEDERATION, plan=continuous_plan(min_changes=2, interval_s=600))
            )
            bench = BenchOf(client)
            for device in "abc":
                bench.say(device, "ready")
            for device in "ab":
                sends(bench, device, 1)
            wait_for(lambda: bench.now().round == 2)
            sends(bench, "b", 2, examples=12)
            yield client


@pytest.fixture
def operator(server: TestClient) -> Visitor:
    return Visitor.logged_in(server, (server.runtime.settings.data_dir / api_keys.OPERATOR_FILE).read_text().strip())


def words_in(text: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))


def described(server: TestClient) -> dict[str, Any]:
    key = {"Authorization": f"Bearer {key_of(server, ['read'])}"}
    found: dict[str, Any] = server.get(f"/v1{HERE}", headers=key).json()
    return found


def test_rest_says_where_it_stands(server: TestClient) -> None:
    found = described(server)
    assert found["summary"] == "running, continuous: 2 devices' sums, 1 change waits"
    assert found["continuous"]["devices"] == 2
    assert found["continuous"]["changes_waiting"] == 1
    assert found["continuous"]["next_version_at"] > found["created_at"] + 600, "too few changes: after max_wait_s"
    assert found["feature_model"]["size"] == 4


def test_its_page_has_sums_and_changes_instead_of_a_round_with_a_deadline(operator: Visitor) -> None:
    text = words_in(operator.get(HERE).text)
    assert "Running, continuous: 2 devices' sums, 1 change waits." in text
    assert "Next version" in text
    assert "devices have reported" not in text
    assert "No round is open" not in text
    overview = words_in(operator.get("/").text)
    assert "Continuous, 1 version published" in overview
    assert "2 devices' sums, 1 change waiting" in overview


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("a", "Its sums of 10 windows are in the model since version 1."),
        ("b", "Its sums of 12 windows wait for the next version; the model has earlier ones since version 1."),
        ("c", "It has sent no sums yet."),
    ],
)
def test_a_devices_page_says_what_of_it_is_in_the_model(operator: Visitor, device: str, words: str) -> None:
    text = words_in(operator.get(f"{HERE}/devices/{device}").text)
    assert words in text
    assert ("Take its sums out" in text) is (device != "c")


def test_an_operator_takes_a_devices_sums_out(server: TestClient, operator: Visitor) -> None:
    reads = Visitor.logged_in(server, key_of(server, ["read"]))
    assert reads.submit(f"{HERE}/devices/a/withdraw", on="/").status_code == 403
    answer = operator.submit(f"{HERE}/devices/a/withdraw", on=HERE)
    assert answer.headers["location"] == f"{HERE}/devices/a"
    assert "Its sums were removed; the next version excludes them." in words_in(operator.get(f"{HERE}/devices/a").text)
    assert described(server)["continuous"]["changes_waiting"] == 2
    key = {"Authorization": f"Bearer {key_of(server, ['operator'])}"}
    refused = server.post(f"/v1{HERE}/devices/c/withdraw", headers=key)
    assert (refused.status_code, "has no sums" in refused.json()["detail"]) == (409, True)
    assert server.post(f"/v1{HERE}/devices/b/withdraw", headers=key).status_code == 200
    assert server.post(f"/v1{HERE}/devices/b/withdraw", headers=key).status_code == 200, "twice changes nothing"
