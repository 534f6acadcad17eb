"""Every whole number from outside fits the column that it is compared with: a contract over all routes and tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from sqlalchemy import BigInteger, Integer

from aggregator_api.http.api.routes import ROUTERS
from aggregator_api.http.web.routes import SUBJECTS as PAGES
from aggregator_api.storage.db.models import Base
from federation.protocol import messages
from federation.protocol.messages import Strict

MAX_INTEGER = 2**63 - 1


def described() -> dict[str, Any]:
    """Describe every route, those of pages too, which the server's own document leaves out."""
    routes = [route for router in (*ROUTERS, *PAGES) for route in router.routes if isinstance(route, APIRoute)]
    shown = [route.include_in_schema for route in routes]
    for route in routes:
        route.include_in_schema = True
    try:
        return get_openapi(title="all", version="0", routes=routes)
    finally:
        for route, was_shown in zip(routes, shown, strict=True):
            route.include_in_schema = was_shown


DOCUMENT = described()


def integers(schema: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each integer in a JSON Schema, with the path to it."""
    if isinstance(schema, list):
        for n, part in enumerate(schema):
            yield from integers(part, f"{where}/{n}")
    elif isinstance(schema, dict):
        if schema.get("type") == "integer" and not {"const", "enum"} & schema.keys():
            yield where, schema
        for key, part in schema.items():
            if key not in ("default", "example", "examples", "const", "enum"):
                yield from integers(part, f"{where}/{key}")


def parameters() -> list[tuple[str, dict[str, Any]]]:
    return [
        found
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        for one in operation.get("parameters", ())
        for found in integers(one["schema"], f"{method} {path} {one['in']} {one['name']}")
    ]


def bodies() -> list[tuple[str, dict[str, Any]]]:
    """Every integer of a request's body: of each schema that a body names, directly or through others."""
    schemas, found = DOCUMENT["components"]["schemas"], {}
    left = [
        operation["requestBody"]
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    ]
    seen: set[str] = set()
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            left += list(part.values())
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name and name not in seen:
                seen.add(name)
                found |= dict(integers(schemas[name], name))
                left.append(schemas[name])
    return list(found.items())


def upper(schema: dict[str, Any]) -> int:
    return int(schema.get("maximum", int(schema.get("exclusiveMaximum", 2 * MAX_INTEGER)) - 1))


def test_there_is_something_to_check() -> None:
    assert any("last-event-id" in where for where, _ in parameters())
    assert any("/federations/{name}/rollouts/{number}" in where for where, _ in parameters())
    assert len(bodies()) > 10


def test_every_integer_parameter_is_bounded() -> None:
    found = parameters()
    assert [where for where, schema in found if not upper(schema) <= MAX_INTEGER] == []
    assert [where for where, schema in found if not {"minimum", "exclusiveMinimum"} & schema.keys()] == []


def test_every_integer_in_a_body_is_bounded() -> None:
    assert [where for where, schema in bodies() if not upper(schema) <= MAX_INTEGER] == []


def test_every_integer_in_a_message_is_bounded() -> None:
    kinds = [one for one in vars(messages).values() if isinstance(one, type) and issubclass(one, Strict)]
    found = [each for kind in kinds for each in integers(kind.model_json_schema(), kind.__name__)]
    assert len(found) > 10
    assert [where for where, schema in found if not upper(schema) <= MAX_INTEGER] == []


def test_every_column_of_whole_numbers_holds_64_bits() -> None:
    narrow = [
        f"{table.name}.{column.name}"
        for table in Base.metadata.sorted_tables
        for column in table.columns
        if isinstance(column.type, Integer) and not isinstance(column.type, BigInteger)
    ]
    assert narrow == []
