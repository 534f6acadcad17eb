"""Requests that schemathesis generates from the OpenAPI document: none gets an answer that the document does not allow.

A few of them in every run, many more in a slow one, and on PostgreSQL too, whose columns are narrower than SQLite's.
Requests are generated where a test runs, an operation a subtest: what is a parameter of a test, every worker of
pytest-xdist generates at its start.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings

from aggregator_api.auth import api_keys
from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from federation.protocol import topics
from tests.aggregator_api.api.test_bounds import DOCUMENT, MAX_INTEGER, integers, upper
from tests.aggregator_api.generated_devices import FEDERATION, Wires, status, tiny_plan
from tests.aggregator_api.http_client import TestClient

Message = dict[str, Any]

FEW, MANY = 2, 60
NAMES = {"name": FEDERATION, "device": "a", "shown": "now", "update_id": "u", "id": "ab" * 6, "sha256": "0" * 64}
CONFIG = {
    "max-stream-events": 2,
    "operations": [
        {
            # a plan may contradict itself in ways that a schema cannot say: waves of rollouts must grow, among others
            "include-name": name,
            "checks": {
                "positive_data_acceptance": {"expected-statuses": ["200", "201", "204", "403", "404", "409", "422"]}
            },
        }
        for name in (
            # its body is a DeviceStatus, which the document calls bytes
            "POST /v1/federations/{name}/devices/{device}/status",
            "POST /v1/checkpoints",  # its body is a file, which the document calls bytes
            "POST /v1/federations",
            "PATCH /v1/federations/{name}",
            "POST /v1/federations/{name}/rollouts",
            "PUT /v1/federations/{name}/aliases/{alias}",  # a reason has no control characters
        )
    ],
}
MANY_REQUESTS = settings(max_examples=MANY, suppress_health_check=list(HealthCheck), deadline=None, database=None)
FEW_REQUESTS = settings(MANY_REQUESTS, max_examples=FEW, derandomize=True)


class Started:
    """The application, whose lifespan is in the fixture's hands and not in schemathesis'."""

    def __init__(self) -> None:
        self.app: FastAPI = create_app(Settings(), Wires)  # for its document; the fixture puts the running one here

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})


STARTED = Started()


def can_be_told_apart(context: Any, case: Any) -> bool:
    """Leave out wrong queries that are right when sent: `limit=[5]` is written `limit=5`, an empty list not at all."""
    return all(not isinstance(value, list | dict) or len(value) > 1 for value in (case.query or {}).values())


def schema(examples: int, *, coverage: bool) -> Any:
    """Return the document with so many examples for each operation."""
    given = {
        **CONFIG,
        "generation": {"max-examples": examples, "database": "none"},
        "phases": {"coverage": {"enabled": coverage}},
    }
    found = schemathesis.openapi.from_dict(STARTED.app.openapi(), config=schemathesis.Config.from_dict(given))
    found.app = STARTED
    found.hook("filter_case")(can_be_told_apart)
    return found


@pytest.fixture(scope="module")
def key(request: pytest.FixtureRequest, backend: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The operator's key to a server with one federation, round 1 open for devices a and b."""
    # schemathesis asks for it within a test, whose own database goes with the test
    url = request.getfixturevalue("cluster").new_database() if "GAITWAY_DATABASE_URL" in os.environ else None
    with serving(tmp_path_factory.mktemp("api"), **({"database_url": url} if url else {})) as found:
        yield found


@contextmanager
def serving(folder: Path, **more: Any) -> Iterator[str]:
    """Serve the application that is asked, and yield its operator's key."""
    unlimited = {"key_requests_per_s": 1e6, "address_requests_per_s": 1e6, "failed_keys_per_s": 1e6}
    given = {"host": "0.0.0.0", "aggregation_process": False, **unlimited, **more}
    STARTED.app = create_app(Settings(data_dir=folder, **given), Wires)
    with TestClient(STARTED.app) as client:
        runtime = STARTED.app.state.runtime
        found = (runtime.settings.data_dir / api_keys.OPERATOR_FILE).read_text().strip()
        client.headers["Authorization"] = f"Bearer {found}"
        body = {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")}
        assert client.post("/v1/federations", json=body).status_code == 201
        for device in ("a", "b"):
            runtime.ingest.handle(topics.status(FEDERATION, device), status("ready"))
        yield found


few_requests = schemathesis.pytest.from_fixture("few")
many_requests = schemathesis.pytest.from_fixture("many")


@pytest.fixture(scope="module")
def few() -> Any:
    """The document, for the requests of every run."""
    return schema(FEW, coverage=False)


@pytest.fixture(scope="module")
def many() -> Any:
    """The document, for the slow test's requests."""
    return schema(MANY, coverage=True)


def check(case: Any, key: str) -> None:
    response = case.call_and_validate(headers={"Authorization": f"Bearer {key}"})
    assert response.status_code != 429, "a rate limit answers in place of the operation"
    if response.status_code >= 400 and case.method.upper() != "HEAD":
        assert response.headers["content-type"] == ["application/problem+json"]


@pytest.mark.ci
@FEW_REQUESTS
@few_requests.parametrize()
def test_a_few_generated_requests(case: Any, key: str) -> None:
    check(case, key)


@pytest.mark.slow
@MANY_REQUESTS
@many_requests.parametrize()
def test_many_generated_requests(case: Any, key: str) -> None:
    check(case, key)


def requests() -> Iterator[tuple[str, str, dict[str, str], dict[str, str]]]:
    """Yield method, path, query and headers of every route with one of its whole numbers at an end."""
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            found = operation.get("parameters", ())
            ends = {p["name"]: [s for _, s in integers(p["schema"], "")] for p in found}
            for one in found:
                for limit in map(upper, ends[one["name"]]):
                    for value in sorted({min(2**31, limit), min(2**63 - 1, limit)}):
                        filled = {**NAMES, **dict.fromkeys(ends, "1"), one["name"]: str(value)}
                        inside = {name: quote(filled.get(name, "x")) for name in _in(path)}
                        query = {one["name"]: str(value)} if one["in"] == "query" else {}
                        headers = {one["name"]: str(value)} if one["in"] == "header" else {}
                        yield method, path.format(**inside), query, headers


def _in(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


@pytest.mark.ci
def test_every_whole_number_at_its_ends_is_answered(key: str) -> None:
    client = TestClient(STARTED.app, key=key, raise_server_exceptions=False)
    wrong = []
    asked = 0
    for method, path, query, headers in requests():
        if path.endswith("/events"):
            continue  # a stream without an end; its number is compared as that of the journal is
        answer = client.request(method, path, params=query, headers=headers, follow_redirects=False)
        asked += 1
        if answer.status_code >= 500:
            wrong.append((method, path, query, answer.status_code))
    assert wrong == []
    assert asked > 100
    assert MAX_INTEGER == 2**63 - 1
