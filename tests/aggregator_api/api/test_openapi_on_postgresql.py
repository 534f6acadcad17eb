"""The same generated requests on PostgreSQL, whose columns are narrower than SQLite's, and every number at its ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.aggregator_api.api.test_bounds import DOCUMENT, MAX_INTEGER, integers, upper
from tests.aggregator_api.api.test_openapi_generated import (
    FEW_REQUESTS,
    MANY_REQUESTS,
    STARTED,
    check,
    few_requests,
    many_requests,
    serving,
)
from tests.aggregator_api.api.test_openapi_generated import few as few
from tests.aggregator_api.api.test_openapi_generated import many as many
from tests.aggregator_api.generated_devices import FEDERATION
from tests.aggregator_api.http_client import TestClient
from tests.live.real_parts import Postgres

pytestmark = pytest.mark.ci
NAMES = {"name": FEDERATION, "device": "a", "shown": "now", "update_id": "u", "id": "ab" * 6, "sha256": "0" * 64}


@pytest.fixture(scope="module")
def key(cluster: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The operator's key to a server on PostgreSQL."""
    url = cluster.new_database()
    with serving(tmp_path_factory.mktemp("api"), database_url=url, lease_s=0) as found:
        yield found


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
