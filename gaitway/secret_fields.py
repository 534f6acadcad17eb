"""Secret settings: `SecretStr` fields, which print as dots and never appear in errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

from pydantic import SecretStr


def revealed(secret: SecretStr | None) -> str | None:
    """Return a secret's value where it is needed."""
    return None if secret is None else secret.get_secret_value()


class SecretFields:
    """Converts input for `SecretStr` fields before any other validation, so that errors show dots too.

    List it before pydantic's class among the bases.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the schema of a class below this one."""
        base: Any = super()
        schema = base.__get_pydantic_core_schema__(source, handler)
        return {"type": "function-before", "function": _no_info(partial(_hidden, source)), "schema": schema}


class Hidden:
    """A value that isn't a string, given for a secret."""

    def __repr__(self) -> str:
        """Print as a secret does."""
        return "**********"


def _no_info(function: Callable[[Any], Any]) -> dict[str, Any]:
    return {"type": "no-info", "function": function}


def _hidden(kind: Any, given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    return {name: _secret(value) if name in _secrets(kind) else value for name, value in given.items()}


def _secrets(kind: Any) -> set[str]:
    return {name for name, field in kind.model_fields.items() if _is_secret(field.annotation)}


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_is_secret, get_args(annotation)))


def _secret(value: Any) -> Any:
    if isinstance(value, str):
        return SecretStr(value)
    return value if value is None or isinstance(value, SecretStr) else Hidden()
