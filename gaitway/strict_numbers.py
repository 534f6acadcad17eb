"""Strict numbers for outside input: pydantic by default takes `false` for 0, `"5"` for 5 and 1 for `true`.

A subclass of `StrictNumbers` (or of `TypedNumbers`, which accepts numbers as text) rejects these in all of its fields,
at any depth of a field's type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KEPT = frozenset({"config", "default", "expected", "function", "keys_schema", "metadata", "serialization"})
"""Parts of a core schema that don't describe a value, or describe keys, which are text in JSON."""


class StrictNumbers:
    """Accepts only numbers, not booleans or text, and only finite ones without `allow_inf_nan`; 3.0 is whole."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the schema of a class below this one, or of a type annotated with it."""
        return _changed(handler(source), _strict)


class TypedNumbers:
    """Accepts numbers as text, as in the environment and on the command line, but never booleans."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the schema of a class below this one, or of a type annotated with it."""
        return _changed(handler(source), _typed)


def _changed(part: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a core schema with `change` applied to its numbers and booleans."""
    if isinstance(part, list | tuple):
        return type(part)(_changed(inner, change) for inner in part)
    if not isinstance(part, dict) or _is_ours(part):
        return part
    if part.get("type") in ("int", "float", "bool"):
        return change(part)
    return {key: inner if key in _KEPT else _changed(inner, change) for key, inner in part.items()}


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    if schema["type"] == "int":
        return _after(_whole, schema)
    more = {"allow_inf_nan": False} if schema["type"] == "float" else {}
    return {**more, **schema, "strict": True}


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    return schema if schema["type"] == "bool" else _after(_number, schema)


def _after(check: Callable[[Any], Any], schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function-before", "function": {"type": "no-info", "function": check}, "schema": schema}


def _is_ours(schema: dict[str, Any]) -> bool:
    function = schema.get("function")
    return isinstance(function, dict) and function.get("function") in (_whole, _number)


def _whole(given: Any) -> Any:
    """Accept a number that JSON Schema calls an integer, such as 3.0."""
    if isinstance(given, bool | str | bytes):
        raise ValueError("Input should be a valid integer")
    return given


def _number(given: Any) -> Any:
    if isinstance(given, bool):
        raise ValueError("Input should be a valid number")
    return given
