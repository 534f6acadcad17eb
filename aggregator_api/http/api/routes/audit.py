"""The audit, for whoever must see what operators and devices did; it can only be read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from aggregator_api.auth.scopes import requires
from aggregator_api.http.api import queries
from aggregator_api.http.api.dependencies import DatabaseDep, PageDep
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.api.schemas.resources import AuditEntry, Page
from aggregator_api.storage.db.audit import Filters

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("", summary="List what was done, and by whom", responses=responses(422))
@requires("operator")
def listing(
    database: DatabaseDep,
    page: PageDep,
    since: Annotated[float | None, Query(ge=0, le=1e12, description="from this time on, in Unix seconds")] = None,
    actor: Annotated[str | None, Query(max_length=96, description="only of this key's id, or other actor")] = None,
    action: Annotated[str | None, Query(max_length=64, description="only this, or all of a noun: keys")] = None,
    federation: Annotated[str | None, Query(max_length=64, description="only about this one")] = None,
    device: Annotated[str | None, Query(max_length=64, description="only about devices of this name")] = None,
) -> Page[AuditEntry]:
    """List the entries that fit, the oldest first; it needs an operator's key for the whole server."""
    with database.read() as session:
        return queries.audit(session, Filters(since, actor, action, federation, device), page)
