"""The overview of all federations, the audit log, and what both show live."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from aggregator_api.auth.api_keys import Caller
from aggregator_api.auth.open_streams import StreamAccess
from aggregator_api.auth.scopes import requires
from aggregator_api.federations import service
from aggregator_api.http.dependencies import CallerDep, DatabaseDep, FederationName, PageDep, ReadinessDep
from aggregator_api.http.event_feed import ALL, EventFeed
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.listings import PageParams
from aggregator_api.http.web import views
from aggregator_api.http.web.pages import may_act, page, part
from aggregator_api.notifications import attention
from aggregator_api.operations.health import Readiness
from aggregator_api.storage.db.audit import Filters
from aggregator_api.storage.db.database import Database

router = APIRouter()


@router.get("/")
@requires("operator", "read", filtered=True, below=("/federations", "/events"))
def overview(
    request: Request, database: DatabaseDep, readiness: ReadinessDep, caller: CallerDep, cursor: PageDep
) -> Response:
    """Show where everything stands."""
    return page(request, "overview.html", **_found(request, database, readiness, caller, cursor))


@router.get("/live_overview/overview")
@requires("operator", "read", filtered=True, below=("/live_overview", "/live_overview/federations/{name}"))
def live_overview(
    request: Request, database: DatabaseDep, readiness: ReadinessDep, caller: CallerDep, cursor: PageDep
) -> Response:
    """Show the same without what stays."""
    return part(request, "parts/overview.html", **_found(request, database, readiness, caller, cursor))


def _found(
    request: Request, database: Database, readiness: Readiness, caller: Caller, cursor: PageParams
) -> dict[str, Any]:
    wanted = PageParams(cursor.cursor, min(cursor.limit, views.FEDERATIONS))
    with database.read() as session:
        found, following = views.summaries(session, caller.federation, wanted)
        own = attention.of_server(session, readiness, time.time()) if caller.federation is None else []
    urgent = attention.worst_first([*own, *(item for overview in found for item in overview.attention)])
    shown: dict[str, Any] = {"summaries": found, "next_cursor": following, "cursor": cursor.cursor}
    shown["may_create"] = may_act(caller, None)
    return {**shown, "attention": urgent}


audit_router = APIRouter()

Narrowing = Annotated[str, Query(max_length=96)]


async def audit_choice(
    actor: Narrowing = "", action: Narrowing = "", federation: Narrowing = "", device: Narrowing = ""
) -> dict[str, str]:
    """Read which entries of the audit log the form asks for."""
    return {"actor": actor.strip(), "action": action.strip(), "about": federation.strip(), "device": device.strip()}


@audit_router.get("/audit")
@requires("operator")
def listing(
    request: Request, database: DatabaseDep, cursor: PageDep, chosen: Annotated[dict[str, str], Depends(audit_choice)]
) -> Response:
    """List the entries that fit, the newest first; it needs an operator's key for the whole server."""
    filters = Filters(None, *(text or None for text in chosen.values()))
    with database.read() as session:
        found = listings.audit(session, filters, cursor._replace(newest_first=True))
    return page(request, "audit.html", found=found, chosen=chosen, cursor=cursor.cursor)


live_router = APIRouter()


@live_router.get("/events")
@requires("operator", "read", filtered=True)
async def everywhere(request: Request, caller: CallerDep) -> StreamingResponse:
    """Follow all federations that the key is for."""
    return _stream(request, caller.federation or ALL)


@live_router.get("/federations/{name}/events")
@requires("operator", "read")
def of_federation(request: Request, database: DatabaseDep, name: FederationName) -> StreamingResponse:
    """Follow one federation."""
    with database.read() as session:
        service.get_federation(session, name)
    return _stream(request, name)


def _stream(request: Request, name: str) -> StreamingResponse:
    feed: EventFeed = request.app.state.event_feed
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        feed.changes(name, StreamAccess.of(request)), headers=headers, media_type="text/event-stream"
    )
