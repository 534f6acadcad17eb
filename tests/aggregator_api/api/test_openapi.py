"""The OpenAPI document: complete, checked in, and true of the server, as far as generated requests can tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from aggregator_api.core.settings import Settings
from aggregator_api.http.api.openapi import text
from aggregator_api.http.app import create_app
from tests.aggregator_api.auth.route_table import OPEN
from tests.aggregator_api.generated_devices import Wires
from tests.repository.imports import REPOSITORY


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return create_app(Settings(), Wires)


@pytest.fixture(scope="module")
def operations(app: FastAPI) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, op) for path, ops in app.openapi()["paths"].items() for method, op in ops.items()]


def test_the_document_is_checked_in(app: FastAPI) -> None:
    written = (REPOSITORY / "docs" / "openapi.json").read_text()
    assert written == text(app), "run `python -m aggregator_api openapi --out docs/openapi.json`"


def keywords(schema: Any) -> Iterator[str]:
    """Yield the words of a JSON schema that are no names of properties."""
    if isinstance(schema, list):
        for each in schema:
            yield from keywords(each)
    elif isinstance(schema, dict):
        yield from schema
        for word, value in schema.items():
            yield from keywords(list(value.values()) if word == "properties" else value)


def test_bounds_are_in_words_of_json_schema(app: FastAPI) -> None:
    """Pydantic's own, which it writes where it cannot translate a bound, mean nothing to a client."""
    found = {word for schema in app.openapi()["components"]["schemas"].values() for word in keywords(schema)}
    assert found & {"minimum", "maximum"}
    assert not found & {"ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length"}


def test_every_operation_is_described(operations: list[tuple[str, str, dict[str, Any]]]) -> None:
    assert len(operations) >= 30
    for path, method, operation in operations:
        assert operation["summary"], path
        assert operation["description"], path
        done = [answer for code, answer in operation["responses"].items() if code.startswith("2")]
        assert done, (path, method)
        for answer in done:
            for kind, entry in answer.get("content", {}).items():
                assert entry.get("schema") != {} or kind == "text/event-stream", path


def test_every_error_is_a_problem(operations: list[tuple[str, str, dict[str, Any]]]) -> None:
    for path, method, operation in operations:
        for code, answer in operation["responses"].items():
            if int(code) >= 400:
                assert list(answer["content"]) == ["application/problem+json"], (path, method, code)
        assert "429" in operation["responses"], path
        assert ("404" in operation["responses"]) >= ("{" in path), path
        assert ("413" in operation["responses"]) == (method in ("post", "put", "patch")), (path, method)
        assert ("security" in operation) == (path not in OPEN), path
        if path not in OPEN:
            assert {"401", "403"} <= set(operation["responses"]), path
