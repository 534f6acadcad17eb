"""Types of fields that requests of several kinds have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from federation.plan import Name, Strict, Text

Tags = Annotated[list[Name], Field(max_length=32)]


class Override(Strict):
    """What an operator does against what devices have measured, or without it, and why."""

    force: bool = Field(default=False, description="do it whatever devices have measured; needs a reason")
    reason: Text = Field(default="", max_length=200, description="why, for the journal and the audit; needs force")

    @model_validator(mode="after")
    def _together(self) -> Override:
        if self.force != bool(self.reason.strip()):
            raise ValueError("force and reason go together: say why what devices have measured does not count")
        return self

    @property
    def forced(self) -> str:
        """The reason; empty where the measure counts."""
        return self.reason.strip()
