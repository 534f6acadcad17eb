"""Settings that are secrets: they are `SecretStr`, which prints as dots, and no error about them repeats them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

from pydantic import SecretStr


def revealed(secret: SecretStr | None) -> str | None:
    """Return what a secret is, where it is needed."""
    return None if secret is None else secret.get_secret_value()


class SecretFields:
    """What comes for a field of type `SecretStr` is one before anything else sees it, so that errors have dots too.

    Stands before pydantic's class among the bases.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the schema of a class below this one."""
        base: Any = super()
        schema = base.__get_pydantic_core_schema__(source, handler)
        return {"type": "function-before", "function": _no_info(partial(_hidden, source)), "schema": schema}


class Hidden:
    """Something that is no text where a secret is expected."""

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
