"""Types of fields that requests of several kinds have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from federation.plan import Name

Tags = Annotated[list[Name], Field(max_length=32)]


def _whole(given: Any) -> Any:
    """Let a number through that JSON Schema calls an integer, such as 3.0, and neither a text nor a truth value."""
    if isinstance(given, bool | str):
        raise ValueError("expected an integer")
    return given


WHOLE = BeforeValidator(_whole)
"""Stands after a field's bounds, `Annotated[int, Field(ge=1), WHOLE]`: bounds behind it miss the OpenAPI document."""
