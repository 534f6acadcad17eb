"""The audit as a page: who did what, from where and when, the newest first, narrowed by choices."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from aggregator_api.auth.scopes import requires
from aggregator_api.http.api import queries
from aggregator_api.http.api.dependencies import DatabaseDep, PageDep
from aggregator_api.http.web.pages import page
from aggregator_api.storage.db.audit import Filters

router = APIRouter()

Narrowing = Annotated[str, Query(max_length=96)]


@router.get("/audit")
@requires("operator")
def listing(
    request: Request,
    database: DatabaseDep,
    cursor: PageDep,
    actor: Narrowing = "",
    action: Narrowing = "",
    federation: Narrowing = "",
    device: Narrowing = "",
) -> Response:
    """List the entries that fit, the newest first; it needs an operator's key for the whole server."""
    chosen = {"actor": actor.strip(), "action": action.strip(), "about": federation.strip(), "device": device.strip()}
    filters = Filters(None, *(text or None for text in chosen.values()))
    with database.read() as session:
        found = queries.audit(session, filters, cursor._replace(newest_first=True))
    return page(request, "audit.html", found=found, chosen=chosen, cursor=cursor.cursor)
