"""What Prometheus reads: the figures of a round that a test played, parsed by Prometheus's own reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aggregator_api.core.settings import Settings
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.app import create_app
from aggregator_api.runtime import Runtime
from federation.protocol import topics
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Wires, status, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    settings = Settings(data_dir=tmp_path, aggregation_process=False)
    with OperatorClient(create_app(settings, Wires)) as found:
        yield found


def figures(client: TestClient) -> dict[tuple[str, ...], float]:
    """Read /metrics: name and label values to figure."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def play(runtime: Runtime, folder: Path) -> int:
    """Found a federation and play one round of two devices, and one update too many; return the bytes taken."""
    bench = Bench.__new__(Bench)
    assert isinstance(runtime.transport, Wires)
    bench.runtime, bench.wires = runtime, runtime.transport
    runtime.federations.create(NewFederation(name=FEDERATION, plan=tiny_plan(rounds=1)))
    for device in ("a", "b", "c"):
        runtime.ingest.handle(topics.status(FEDERATION, device), status("ready"))
    runtime.ingest.handle(topics.status(FEDERATION, "c"), status("offline"))
    updates = [bench.update_of(device) for device in bench.invited()]
    updates[0].manifest.metrics.clear()
    assert bench.upload(updates[0]).status == "accepted"
    assert bench.upload(bench.update_of(updates[0].manifest.client, update_id="again")).status == "refused"
    assert bench.upload(updates[1]).status == "accepted"
    wait_for(lambda: bench.now().state == "finished")
    return sum(len(update.data) for update in updates)


def test_the_figures_are_those_of_what_happened(client: TestClient, tmp_path: Path) -> None:
    before = figures(client)
    assert not any(key[0].startswith("gaitway_rounds") for key in before)
    size = play(client.runtime, tmp_path)
    client.get("/v1/federations/nobody")
    client.get("/no/such/path/1234")
    for _ in range(2):  # a second scrape counts nothing twice
        now = figures(client)
        assert now["gaitway_rounds_total", FEDERATION, "published"] == 1
        assert now["gaitway_updates_total", FEDERATION, "accepted"] == 2
        assert now["gaitway_updates_total", FEDERATION, "refused"] == 1
        assert now["gaitway_update_bytes_total", FEDERATION] == size
        assert now["gaitway_devices", FEDERATION, "ready"] == 2
        assert now["gaitway_devices", FEDERATION, "offline"] == 1
        assert now["gaitway_round_number", FEDERATION] == 1
    assert now["gaitway_broker_up",] == 1
    assert now["gaitway_inbox_alive",] == 1
    assert now["gaitway_disk_free_bytes",] > 0
    assert now["gaitway_aggregation_seconds_count",] == before["gaitway_aggregation_seconds_count",] + 1
    assert now["gaitway_http_request_seconds_count", "GET", "/v1/federations/{name}", "404"] >= 1
    assert now["gaitway_http_request_seconds_count", "GET", "unmatched", "404"] >= 1
    assert not any("1234" in part for key in now for part in key)
    assert now["process_resident_memory_bytes",] > 0


def test_a_restart_goes_on_counting(client: TestClient, tmp_path: Path) -> None:
    play(client.runtime, tmp_path)
    before = figures(client)
    with OperatorClient(create_app(client.runtime.settings, Wires)) as again:
        after = figures(again)
    kept = [key for key in before if key[0] in ("gaitway_rounds_total", "gaitway_updates_total")]
    assert kept
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}


def test_figures_name_federations_so_others_need_a_key(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(data_dir=tmp_path), Wires)) as client:
        assert client.get("/metrics").status_code == 401
        key = (tmp_path / "operator.key").read_text().strip()
        assert client.get("/metrics", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert client.get("/healthz").status_code == 200
