"""The OpenAPI document: complete, checked in, and true of the server, as far as generated requests can tell."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from aggregator_api.api.openapi import text
from aggregator_api.app import create_app
from aggregator_api.auth.scopes import OPEN
from aggregator_api.settings import Settings
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
