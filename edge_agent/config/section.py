"""What every section of the agent's settings has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gaitway.secret_fields import SecretFields
from gaitway.strict_numbers import TypedNumbers


class Section(SecretFields, TypedNumbers, BaseModel):
    """Frozen, and refuses unknown keys and truth values for numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
