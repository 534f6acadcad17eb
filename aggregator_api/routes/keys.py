"""API keys: list, make, revoke. A key for one federation sees and makes only keys for the same."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Response
from sqlalchemy.orm import Session

from aggregator_api import keys, listings, records, service
from aggregator_api.credential_views import Key, MadeKey, NewKey
from aggregator_api.errors import ForbiddenError, NotFoundError
from aggregator_api.keys import Caller
from aggregator_api.observability import audit
from aggregator_api.problems import responses
from aggregator_api.routes.dependencies import CallerDep, RuntimeDep, WindowDep
from aggregator_api.tables import CredentialRow
from aggregator_api.views import Page

router = APIRouter(prefix="/v1/keys", tags=["keys"])

KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$", description="the part of the key between gw_ and its secret")]


@router.get("", summary="List the keys", responses=responses(422))
def listing(runtime: RuntimeDep, caller: CallerDep, window: WindowDep) -> Page[Key]:
    """List every key, those that were revoked too, without the secrets."""
    with runtime.database.read() as session:
        return listings.keys(session, caller.federation, window)


@router.post("", status_code=201, summary="Make a key", responses=responses(404, 413, 422))
def make(runtime: RuntimeDep, caller: CallerDep, new: NewKey, response: Response) -> MadeKey:
    """Make a key; the answer is the only place where it is shown."""
    if caller.federation is not None and new.federation != caller.federation:
        raise ForbiddenError(f"the key {caller.id} makes keys for the federation {caller.federation!r} only")
    with runtime.database.write() as session:
        federation = None
        if new.federation is not None and (federation := records.federation_named(session, new.federation)) is None:
            raise service.unknown(new.federation)
        expires_at = time.time() + new.lifetime_s if new.lifetime_s else None
        row, key = keys.make(session, new.name, new.scopes, federation=federation, expires_at=expires_at)
        audit.mention(f"key {row.prefix}")
        shown = MadeKey(**listings.key(session, row).model_dump(), key=key)
    response.headers["Cache-Control"] = "no-store"
    return shown


@router.post("/{id}/revoke", summary="Revoke a key", responses=responses(404, 422))
def revoke(runtime: RuntimeDep, caller: CallerDep, id: KeyId) -> Key:
    """Let a key open nothing any more, from now on."""
    with runtime.database.write() as session:
        row = _owned(session, caller, id)
        keys.revoke(row)
        audit.mention(f"key {id}")
        return listings.key(session, row)


def _owned(session: Session, caller: Caller, prefix: str) -> CredentialRow:
    row = keys.named(session, prefix)
    if row is None or (caller.federation is not None and listings.key(session, row).federation != caller.federation):
        raise NotFoundError(f"there is no key {prefix}; GET /v1/keys lists them")
    return row
