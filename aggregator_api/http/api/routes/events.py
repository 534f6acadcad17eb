"""What happens in a federation, live, as server-sent events (HTML standard, 9.2), and in pages."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from aggregator_api.auth.open_streams import StreamAccess
from aggregator_api.auth.scopes import requires
from aggregator_api.federations import service
from aggregator_api.http.api import queries
from aggregator_api.http.api.dependencies import MAX_ID, DatabaseDep, FederationName, PageDep
from aggregator_api.http.api.event_feed import EventFeed
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.api.schemas.resources import Event, Page

router = APIRouter(prefix="/v1/federations/{name}", tags=["progress"])

# each event, as OpenAPI 3.2 describes a stream; older readers pass over the word `itemSchema`
_EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/Event"},
        },
    },
    "required": ["id", "event", "data"],
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "id, event and data (JSON) of each",
        "content": {"text/event-stream": {"itemSchema": _EVENT}},
    }
}


@router.get(
    "/events",
    summary="Follow what happens",
    response_class=StreamingResponse,
    responses={**_STREAM, **responses(404, 422, 429)},
)
@requires("operator", "read")
def follow(
    request: Request,
    database: DatabaseDep,
    name: FederationName,
    last_event_id: Annotated[int, Header(ge=0, le=MAX_ID, description="continue after this event")] = 0,
) -> StreamingResponse:
    """Send every event after Last-Event-ID, then those to come; without the header, all from the beginning."""
    with database.read() as session:
        service.get_federation(session, name)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    feed: EventFeed = request.app.state.event_feed
    stream = feed.stream(name, last_event_id, StreamAccess.of(request))
    return StreamingResponse(stream, headers=headers, media_type="text/event-stream")


@router.get("/journal", summary="List what happened", responses=responses(404, 422))
@requires("operator", "read")
def journal(database: DatabaseDep, name: FederationName, page: PageDep) -> Page[Event]:
    """List the same events in pages."""
    with database.read() as session:
        return queries.events(session, service.get_federation(session, name), page)
