"""Keys and enrolment tokens as REST and pages show them."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, Field

from aggregator_api.auth.api_keys import Scope
from aggregator_api.http.queries.resources import View
from aggregator_api.storage.db.models import EnrolmentTokenRow


class Key(View):
    """A key, without its secret."""

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)

    id: str = Field(validation_alias="prefix", description="the part of the key that is not secret")
    name: str
    scopes: list[Scope]
    federation: str | None = Field(default=None, description="null: the whole server")
    device: str | None = Field(default=None, description="the device that claimed it")
    created_at: float
    expires_at: float | None
    used_at: float | None = Field(description="to ten minutes")
    revoked_at: float | None
    held_at: float | None = Field(description="since a restore without the ledger: it opens nothing until confirmed")


class MadeKey(Key):
    """A new key; this is the only time that it is shown."""

    key: str = Field(description="send it as `Authorization: Bearer …`")


class Token(View):
    """An enrolment token, without its secret."""

    id: int
    device: str | None
    auto_approve: bool
    tags: list[str]
    created_at: float
    expires_at: float
    used_at: float | None
    used_by: str | None = Field(description="the device that it enrolled")
    revoked_at: float | None
    held_at: float | None = Field(description="since a restore without the ledger: it lets nobody in until confirmed")


class MadeToken(Token):
    """A new token; this is the only time that it is shown."""

    token: str

    @classmethod
    def of(cls, row: EnrolmentTokenRow, token: str) -> Self:
        """Return a new token's row with the token itself."""
        return cls(**Token.model_validate(row).model_dump(), token=token)
