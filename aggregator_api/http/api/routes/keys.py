"""API keys: list, make, revoke. A key for one federation sees and makes only keys for the same."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Response
from sqlalchemy.orm import Session

from aggregator_api.auth import api_keys
from aggregator_api.auth.api_keys import Caller, NewKey
from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import ConflictError, ForbiddenError, NotFoundError
from aggregator_api.federations import service
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.dependencies import CallerDep, DatabaseDep, PageDep
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.credentials import Key, MadeKey
from aggregator_api.http.queries.resources import Page
from aggregator_api.storage.db import audit, repositories
from aggregator_api.storage.db.models import CredentialRow

router = APIRouter(prefix="/v1/keys", tags=["keys"])

MIN_LEFT_S = 86_400.0
"""How long another operator's key must hold for one to be revoked."""
KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$", description="the part of the key between gw_ and its secret")]


@router.get("", summary="List the keys", responses=responses(422))
@requires("operator", filtered=True)
def listing(database: DatabaseDep, caller: CallerDep, page: PageDep) -> Page[Key]:
    """List every key, those that were revoked too, without the secrets."""
    with database.read() as session:
        return listings.keys(session, caller.federation, page)


@router.post("", status_code=201, summary="Make a key", responses=responses(404, 413, 422))
@requires("operator", filtered=True)
def make(database: DatabaseDep, caller: CallerDep, new: NewKey, response: Response) -> MadeKey:
    """Make a key; the answer is the only place where it is shown."""
    if caller.federation is not None and new.federation != caller.federation:
        raise ForbiddenError(f"the key {caller.id} makes keys for the federation {caller.federation!r} only")
    with database.write() as session:
        federation = None
        if new.federation is not None and (federation := repositories.find_federation(session, new.federation)) is None:
            raise service.unknown(new.federation)
        expires_at = time.time() + new.lifetime_s if new.lifetime_s else None
        row, key = api_keys.make(session, new.name, new.scopes, federation=federation, expires_at=expires_at)
        audit.mention(f"key {row.prefix}")
        shown = MadeKey(**listings.key(session, row).model_dump(), key=key)
    response.headers["Cache-Control"] = "no-store"
    return shown


@router.post("/{id}/revoke", summary="Revoke a key", responses=responses(404, 409, 422))
@requires("operator", filtered=True)
def revoke(database: DatabaseDep, caller: CallerDep, id: KeyId) -> Key:
    """Let a key open nothing any more, from now on; the last operator's key of the server stays."""
    with database.write() as session:
        row = _owned(session, caller, id)
        _keep_an_operator(session, row)
        api_keys.revoke(row)
        audit.mention(f"key {id}")
        return listings.key(session, row)


@router.post("/{id}/confirm", summary="Confirm a key after a restore", responses=responses(404, 422))
@requires("operator", filtered=True)
def confirm(database: DatabaseDep, caller: CallerDep, id: KeyId) -> Key:
    """Let a key that a restore without the ledger holds open again what it opened before."""
    with database.write() as session:
        row = _owned(session, caller, id)
        api_keys.confirm(row)
        audit.mention(f"key {id}")
        return listings.key(session, row)


def _keep_an_operator(session: Session, row: CredentialRow) -> None:
    """Refuse to revoke the last operator's key that is valid for another day."""
    now = time.time()
    if not api_keys.opens_server(row, now) or api_keys.has_operator(session, now + MIN_LEFT_S, without=row):
        return
    raise ConflictError(
        f"the key {row.prefix} is the last operator's key of this server that holds for another day; make one first "
        "(POST /v1/keys), or revoke it on the server's machine: `python -m aggregator_api keys revoke`"
    )


def _owned(session: Session, caller: Caller, prefix: str) -> CredentialRow:
    row = api_keys.find_key(session, prefix)
    if row is None or (caller.federation is not None and listings.key(session, row).federation != caller.federation):
        raise NotFoundError(f"there is no key {prefix}; GET /v1/keys lists them")
    return row
