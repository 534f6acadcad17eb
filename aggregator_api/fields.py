"""Types of fields that requests of several kinds have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from federation.plan import Name, Strict

Tags = Annotated[list[Name], Field(max_length=32)]


def _whole(given: Any) -> Any:
    """Let a number through that JSON Schema calls an integer, such as 3.0, and neither a text nor a truth value."""
    if isinstance(given, bool | str):
        raise ValueError("expected an integer")
    return given


WHOLE = BeforeValidator(_whole)
"""Stands after a field's bounds, `Annotated[int, Field(ge=1), WHOLE]`: bounds behind it miss the OpenAPI document."""


class Override(Strict):
    """What an operator does against what devices have measured, or without it, and why."""

    force: bool = Field(default=False, description="do it whatever devices have measured; needs a reason")
    reason: str = Field(default="", max_length=200, description="why, for the journal and the audit; needs force")

    @model_validator(mode="after")
    def _together(self) -> Override:
        if self.force != bool(self.reason.strip()):
            raise ValueError("force and reason go together: say why what devices have measured does not count")
        return self

    @property
    def forced(self) -> str:
        """The reason; empty where the measure counts."""
        return self.reason.strip()
