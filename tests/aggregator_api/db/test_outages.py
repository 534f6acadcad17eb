"""A store that is away, locked, full or damaged: who asks is told so, nothing is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aggregator_api.auth.api_keys import OPERATOR_FILE
from aggregator_api.core.settings import Settings
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.app import create_app
from aggregator_api.runtime import Runtime
from aggregator_api.storage.db import repositories
from aggregator_api.transport.mqtt.inbox import Message
from federation.protocol import topics
from tests.aggregator_api.bench import wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Wires, status, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem
from tests.aggregator_api.sockets import get, served
from tests.aggregator_api.storage.test_full_disk import fill
from tests.live.real_parts import Postgres, postgres
from tests.ports import free_port

HERE = f"/v1/federations/{FEDERATION}"
BODY = {"name": FEDERATION, "plan": tiny_plan(rounds=3).model_dump(mode="json")}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """A server on SQLite that gives a locked database half a second."""
    settings = Settings(data_dir=tmp_path / "data", database_timeout_s=0.5)
    with OperatorClient(create_app(settings, Wires)) as found:
        yield found


def opened(client: TestClient) -> Runtime:
    """Create the federation, and open round 1 for devices a and b."""
    assert client.post("/v1/federations", json=BODY).status_code == 201
    for device in "ab":
        client.runtime.ingest.handle(topics.status(FEDERATION, device), status("ready"))
    assert client.get(HERE).json()["round"] == 1
    return client.runtime


def unready(client: TestClient) -> str:
    return str(problem(client.get("/readyz"), 503)["detail"])


LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Let another process hold the writers' lock."""
    command = [sys.executable, "-c", LOCK, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        yield
        other.communicate()


def test_a_locked_database_is_told_and_its_readers_are_still_answered(client: TestClient, tmp_path: Path) -> None:
    opened(client)
    with locked(tmp_path / "data" / "gaitway.sqlite3"):
        answer = client.post(f"{HERE}/pause")
        said = problem(answer, 503)["detail"]
        assert said.startswith("the database is locked by another program")
        assert int(answer.headers["retry-after"]) >= 1
        assert unready(client) == "the database is locked by another program"
        assert client.get(HERE).json()["status"] == "running"
    assert client.post(f"{HERE}/pause").status_code == 200
    assert client.get("/readyz").status_code == 200


def test_a_message_that_meets_a_locked_database_waits_for_it(client: TestClient, tmp_path: Path) -> None:
    runtime = opened(client)
    acknowledged: list[str] = []
    with locked(tmp_path / "data" / "gaitway.sqlite3"):
        word = status("ready", examples=77)
        runtime.receive(Message(topics.status(FEDERATION, "c"), word, lambda: acknowledged.append("c")))
        time.sleep(1.5)
        assert not acknowledged
    wait_for(lambda: acknowledged == ["c"])
    assert client.get(f"{HERE}/devices/c").json()["examples"] == 77


def test_a_full_disk_refuses_what_would_be_stored_and_says_so(small_disk: Path) -> None:
    settings = Settings(data_dir=small_disk / "data", min_free_bytes=0)
    with OperatorClient(create_app(settings, Wires)) as client:
        ballast = small_disk / "ballast"
        fill(ballast)
        said = problem(client.post("/v1/federations", json=BODY), 507)["detail"]
        assert "the server's disk is full" in said
        assert str(small_disk) not in said
        assert "the disk is full" in unready(client)
        ballast.unlink()
        assert client.post("/v1/federations", json=BODY).status_code == 201
        assert client.get("/readyz").status_code == 200


def damage(runtime: Runtime, sha256: str) -> bytes:
    """Turn a bit of a blob on the disk; return what it was."""
    path = Path(runtime.blobs.root) / sha256[:2] / sha256
    good = path.read_bytes()
    path.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    return good


def the_model(client: TestClient) -> str:
    return str(client.get(HERE).json()["model"]["sha256"])


def test_a_damaged_model_ends_the_round_with_its_reason_and_pauses(client: TestClient) -> None:
    runtime = opened(client)
    sha256 = the_model(client)
    good = damage(runtime, sha256)
    answer = problem(client.get(f"/v1/blobs/{sha256}"), 503)
    assert "damaged" in answer["detail"]
    ended = client.get(f"{HERE}/rounds/1").json()
    assert ended["phase"] == "failed"
    assert f"blob {sha256} is damaged" in ended["reason"]
    assert client.get(HERE).json()["status"] == "paused"
    journal = client.get(f"{HERE}/journal").json()["items"]
    assert any(each["kind"] == "federation.paused" and sha256 in each["detail"] for each in journal)
    path = Path(runtime.blobs.root) / sha256[:2] / sha256
    path.write_bytes(good)
    assert client.post(f"{HERE}/resume").json()["round"] == 2
    assert client.get(f"/v1/blobs/{sha256}").content == good


@pytest.mark.parametrize("which", ["broadcast", "state"])
def test_no_round_begins_from_a_damaged_model(client: TestClient, which: str) -> None:
    assert client.post("/v1/federations", json=BODY).status_code == 201
    runtime = client.runtime
    with runtime.database.read() as session:
        federation = repositories.find_federation(session, FEDERATION)
        assert federation is not None
        version = repositories.current_version(session, federation)
        sha256 = version.broadcast_sha256 if which == "broadcast" else version.state_sha256
    damage(runtime, sha256)
    for device in "ab":
        runtime.ingest.handle(topics.status(FEDERATION, device), status("ready"))
    assert f"blob {sha256} is damaged" in client.get(f"{HERE}/rounds/1").json()["reason"]
    described = client.get(HERE).json()
    assert (described["status"], described["round"]) == ("paused", 1)  # the other rounds are not used up


@pytest.mark.ci
def test_a_second_server_on_the_same_folder_does_not_start(tmp_path: Path) -> None:
    def serve() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "aggregator_api", "serve", "--data-dir", str(tmp_path / "data")]
        command += ["--port", str(free_port()), "--broker-port", str(free_port())]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    with serve() as first:
        try:
            wait_for((tmp_path / "data" / "operator.key").exists, seconds=60)
            with serve() as second:
                try:
                    said, _ = second.communicate(timeout=60)
                finally:
                    second.kill()
            assert second.returncode == 2, said
            assert f"process {first.pid}" in said
            assert "Traceback" not in said
        finally:
            first.kill()
            first.communicate()


@pytest.fixture
def cluster_to_stop() -> Iterator[Postgres]:
    """A PostgreSQL that only this module uses."""
    with postgres() as running:
        yield running


@pytest.mark.ci
def test_postgresql_that_stops_is_told_and_waited_for(
    cluster_to_stop: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = cluster_to_stop.new_database()
    settings = Settings(data_dir=tmp_path, database_url=url, lease_s=0)
    app = create_app(settings, Wires)
    acknowledged: list[int] = []
    with served(app) as port:
        runtime: Runtime = app.state.runtime

        def asked(path: str) -> tuple[int, Any]:
            key = (runtime.settings.data_dir / OPERATOR_FILE).read_text().strip()
            code, text = asyncio.run(get(port, path, f"Authorization: Bearer {key}"))
            return code, json.loads(text)

        runtime.federations.create(NewFederation.model_validate(BODY))
        assert asked(HERE)[0] == 200
        cluster_to_stop.stop()
        began = time.monotonic()
        caplog.clear()
        try:
            for n in range(30):
                topic = topics.status(FEDERATION, f"d{n}")
                runtime.receive(Message(topic, status("ready"), partial(acknowledged.append, n)))
            for _ in range(50):
                code, said = asked(HERE)
                assert (code, said["title"]) == (503, "Service unavailable")
            assert said["detail"].startswith("the database does not answer")
            code, said = asked("/readyz")
            assert (code, said["detail"]) == (503, "the database does not answer")
            assert asked("/healthz")[0] == 200
            time.sleep(max(0.0, 2.5 - (time.monotonic() - began)))
            assert not acknowledged
            loud = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(loud) <= time.monotonic() - began + 2, [record.getMessage() for record in loud]
            assert not any(record.exc_info for record in loud)
        finally:
            cluster_to_stop.resume()
        wait_for(lambda: asked("/readyz")[0] == 200)
        wait_for(lambda: len(acknowledged) == 30)
        found = asked(HERE)[1]
        assert found["devices"] == 30
        wait_for(lambda: asked(HERE)[1]["round"] == 1)
