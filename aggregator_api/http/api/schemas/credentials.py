"""What REST takes and answers about keys and enrolment tokens."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from aggregator_api.auth.api_keys import Scope
from aggregator_api.devices.enrolment import Tags
from aggregator_api.http.api.schemas.resources import View
from federation.plan import Name, Strict

YEAR_S = 366 * 24 * 3600
DAY_S = 24 * 3600


class NewKey(Strict):
    """A key to make."""

    name: Name = Field(description="whose key it is, for the operator")
    scopes: list[Scope] = Field(
        min_length=1, max_length=3, description="operator: all; read: every GET; device: models"
    )
    federation: Name | None = Field(default=None, description="null: the whole server")
    lifetime_s: Annotated[int, Field(ge=60, le=10 * YEAR_S)] | None = Field(
        default=None, description="null: until revoked"
    )


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


class NewToken(Strict):
    """An enrolment token to make."""

    device: Name | None = Field(default=None, description="null: a device of any name that is free")
    auto_approve: bool = Field(default=False, description="let the device in without the operator's approval")
    tags: Tags = Field(default=[], description="groups that the device is put into when it enrols")
    lifetime_s: Annotated[int, Field(ge=60, le=YEAR_S)] = DAY_S


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
