"""What tells a page that something has changed: one stream a page, a message a second at the most."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from aggregator_api.auth.open_streams import StreamAccess
from aggregator_api.auth.scopes import requires
from aggregator_api.federations import service
from aggregator_api.http.api.dependencies import CallerDep, DatabaseDep, FederationName
from aggregator_api.http.api.event_feed import ALL, EventFeed

router = APIRouter()


@router.get("/events")
@requires("operator", "read", filtered=True)
async def everywhere(request: Request, caller: CallerDep) -> StreamingResponse:
    """Follow all federations that the key is for."""
    return _stream(request, caller.federation or ALL)


@router.get("/federations/{name}/events")
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
