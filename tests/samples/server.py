"""A server's database with two rows in every table, and its REST interface."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from aggregator_api.core.settings import Settings, sqlite_url
from aggregator_api.http.api import openapi
from aggregator_api.http.app import create_app
from aggregator_api.storage.db.database import Database
from tests.samples.rows import fill

DATABASE, REST = "server.sql", "openapi.json"
PROSE = frozenset({"description", "summary", "title", "example", "examples", "tags", "operationId"})
"""Of the OpenAPI document; no program depends on it."""


def write(out: Path, scratch: Path) -> None:
    """Write server.sql and openapi.json."""
    path = scratch / "server.sqlite3"
    database = Database(sqlite_url(path))
    database.migrate()
    fill(database)
    database.close()
    connection = sqlite3.connect(path)
    (out / DATABASE).write_text("\n".join(connection.iterdump()) + "\n")
    connection.close()
    (out / REST).write_text(json.dumps(contract(described()), indent=0, sort_keys=True, separators=(",", ":")) + "\n")


def described() -> dict[str, Any]:
    """Return today's OpenAPI document."""
    document: dict[str, Any] = json.loads(openapi.text(create_app(Settings())))
    return document


def contract(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without prose and without errors, which all have one form."""
    kept: dict[str, Any] = without_prose(document)
    for operations in kept["paths"].values():
        for operation in operations.values():
            answers = operation["responses"].items()
            operation["responses"] = {code: answer for code, answer in answers if code.startswith("2")}
    return kept


def without_prose(value: Any, *, names: bool = False) -> Any:
    """Drop what is said to people; `names`: the keys are fields, which may be called anything."""
    if isinstance(value, dict):
        return {
            key: without_prose(held, names=key == "properties" and not names)
            for key, held in value.items()
            if names or key not in PROSE
        }
    return [without_prose(one) for one in value] if isinstance(value, list) else value


def narrowed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Name what a program that was written for the old interface can no longer send, or no longer gets."""
    found = []
    for path, operations in old["paths"].items():
        for method, operation in operations.items():
            where = f"{method.upper()} {path}"
            today = new["paths"].get(path, {}).get(method)
            found += [f"{where} is gone"] if today is None else _Operation(old, new).narrowed(operation, today, where)
    return found


class _Operation:
    """Compares two descriptions of an operation; schemas are looked up where they refer to each other."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        self.old, self.new = old, new
        self._compared: set[tuple[int, int, bool]] = set()

    def narrowed(self, was: dict[str, Any], now: dict[str, Any], where: str) -> list[str]:
        old, new = ({(p["in"], p["name"]): p for p in each.get("parameters", [])} for each in (was, now))
        found = [f"{where}: parameter {name} is gone" for _, name in sorted(old.keys() - new.keys())]
        found += [
            f"{where}: parameter {name} is required now"
            for (kind, name), parameter in sorted(new.items())
            if parameter.get("required") and not old.get((kind, name), {}).get("required")
        ]
        if "requestBody" in now:
            bodies = [each.get("requestBody", {}) for each in (was, now)]
            if bodies[1].get("required") and not bodies[0].get("required"):
                found.append(f"{where}: a body is required now")
        found += self._contents(was.get("requestBody"), now.get("requestBody"), f"{where}: request", sent=True)
        for code, answer in was["responses"].items():
            if code not in now["responses"]:
                found.append(f"{where}: no answer {code}")
            found += self._contents(answer, now["responses"].get(code), f"{where}: {code}", sent=False)
        return found

    def _contents(self, was: Any, now: Any, where: str, *, sent: bool) -> list[str]:
        found = []
        for media, described in (was or {}).get("content", {}).items():
            today = (now or {}).get("content", {}).get(media)
            if today is None:
                found.append(f"{where}: {media} is gone")
            else:
                found += self._schemas(described.get("schema", {}), today.get("schema", {}), where, sent=sent)
        return found

    def _schemas(self, was: Any, now: Any, where: str, *, sent: bool) -> list[str]:
        was, now = _resolved(was, self.old), _resolved(now, self.new)
        if (id(was), id(now), sent) in self._compared:
            return []
        self._compared.add((id(was), id(now), sent))
        old, new = was.get("properties", {}), now.get("properties", {})
        found = [f"{where}.{name} is gone" for name in sorted(old.keys() - new.keys())]
        required = set(now.get("required", [])) - set(was.get("required", [])) if sent else set()
        found += [f"{where}.{name} is required now" for name in sorted(required)]
        if "type" in was and was["type"] != now.get("type", was["type"]):
            found.append(f"{where} was {was['type']}, is {now['type']}")
        gone = set(was.get("enum", [])) - set(now.get("enum", was.get("enum", [])))
        found += [f"{where}: {value!r} is refused" for value in sorted(gone)] if sent else []
        for name in sorted(old.keys() & new.keys()):
            found += self._schemas(old[name], new[name], f"{where}.{name}", sent=sent)
        if "items" in was and "items" in now:
            found += self._schemas(was["items"], now["items"], f"{where}[]", sent=sent)
        for one, other in zip(was.get("allOf", []), now.get("allOf", []), strict=False):
            found += self._schemas(one, other, where, sent=sent)
        for kind in ("anyOf", "oneOf"):  # there may be more of them now, in any order
            for one in was.get(kind, []):
                narrowed = [self._schemas(one, other, where, sent=sent) for other in now.get(kind, [])]
                found += min(narrowed, key=len, default=[])
        return found


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema
