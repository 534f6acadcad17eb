"""/readyz says the truth about each part that it asks, and /healthz only that the process lives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import OperatorClient, TestClient


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with OperatorClient(create_app(Settings(data_dir=tmp_path / "data"), Wires)) as found:
        yield found


def unready(client: TestClient) -> str:
    """Return what the server lacks, while it lives all the same."""
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert client.get("/healthz").status_code == 200
    return str(answer.json()["detail"])


def test_a_server_whose_parts_work_is_ready(client: TestClient) -> None:
    assert client.get("/readyz").status_code == 200
    assert client.get("/healthz").json() == {"status": "ok"}


def test_a_broker_that_is_away_is_named(client: TestClient) -> None:
    assert isinstance(client.runtime.transport, Wires)
    client.runtime.transport.is_up = False
    assert unready(client) == "the broker is not connected"


def test_a_database_that_is_gone_is_named(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = client.runtime.database.engine
    engine.dispose()
    (tmp_path / "data" / "gaitway.sqlite3").rename(tmp_path / "elsewhere")
    (tmp_path / "data" / "gaitway.sqlite3").mkdir()
    said = unready(client)
    assert said.startswith("the database does not answer")
    assert str(tmp_path) not in said
    engine.dispose()
    (tmp_path / "data" / "gaitway.sqlite3").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "data" / "gaitway.sqlite3")
    assert client.get("/readyz").status_code == 200


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", min_free_bytes=1 << 60)
    with OperatorClient(create_app(settings, Wires)) as client:
        assert "bytes are left" in unready(client)


def test_a_thread_that_ended_is_named(client: TestClient) -> None:
    runtime = client.runtime
    runtime.inbox.stop()
    assert unready(client) == "messages are not being handled"
