"""What happens in a federation, live, as server-sent events (HTML standard, 9.2), and in pages."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from aggregator_api.api import queries
from aggregator_api.api.event_feed import EventFeed
from aggregator_api.api.middleware.problems import responses
from aggregator_api.api.routes.dependencies import MAX_ID, FederationName, PageDep, RuntimeDep
from aggregator_api.api.schemas.resources import Event, Page
from aggregator_api.federations import service

router = APIRouter(prefix="/v1/federations/{name}", tags=["progress"])

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "id, event and data (JSON) of each",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get(
    "/events",
    summary="Follow what happens",
    response_class=StreamingResponse,
    responses={**_STREAM, **responses(404, 422)},
)
def follow(
    request: Request,
    runtime: RuntimeDep,
    name: FederationName,
    last_event_id: Annotated[int, Header(ge=0, le=MAX_ID, description="continue after this event")] = 0,
) -> StreamingResponse:
    """Send every event after Last-Event-ID, then those to come; without the header, all from the beginning."""
    with runtime.database.read() as session:
        service.named(session, name)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    feed: EventFeed = request.app.state.event_feed
    stream = feed.stream(name, last_event_id)
    return StreamingResponse(stream, headers=headers, media_type="text/event-stream")


@router.get("/journal", summary="List what happened", responses=responses(404, 422))
def journal(runtime: RuntimeDep, name: FederationName, page: PageDep) -> Page[Event]:
    """List the same events in pages."""
    with runtime.database.read() as session:
        return queries.events(session, service.named(session, name), page)
