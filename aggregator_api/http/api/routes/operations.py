"""The audit log, the journal and its stream, and the health of the server."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST

from aggregator_api.auth.scopes import anybody, requires
from aggregator_api.auth.sessions import StreamAccess
from aggregator_api.http.api.middleware.problems import problem, responses
from aggregator_api.http.dependencies import MAX_ID, DatabaseDep, PageDep, PlaceDep, ReadinessDep
from aggregator_api.http.event_feed import EventFeed
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.resources import AuditEntry, Event, Health, Page
from aggregator_api.operations.metrics import Metrics
from aggregator_api.storage.db.audit import Filters

audit_router = APIRouter(prefix="/v1/audit", tags=["audit"])


async def audit_filters(
    since: Annotated[float | None, Query(ge=0, le=1e12, description="from this time on, in Unix seconds")] = None,
    actor: Annotated[str | None, Query(max_length=96, description="only of this key's id, or other actor")] = None,
    action: Annotated[str | None, Query(max_length=64, description="only this, or all of a noun: keys")] = None,
    federation: Annotated[str | None, Query(max_length=64, description="only about this one")] = None,
    device: Annotated[str | None, Query(max_length=64, description="only about devices of this name")] = None,
) -> Filters:
    """Read which entries of the audit log are wanted."""
    return Filters(since, actor, action, federation, device)


@audit_router.get("", summary="List what was done, and by whom", responses=responses(422))
@requires("operator")
def listing(
    database: DatabaseDep, wanted: Annotated[Filters, Depends(audit_filters)], page: PageDep
) -> Page[AuditEntry]:
    """List the entries that fit, the oldest first; it needs an operator's key for the whole server."""
    with database.read() as session:
        return listings.audit(session, wanted, page)


events_router = APIRouter(prefix="/v1/federations/{name}", tags=["progress"])

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


@events_router.get(
    "/events",
    summary="Follow what happens",
    response_class=StreamingResponse,
    responses={**_STREAM, **responses(404, 422, 429)},
)
@requires("operator", "read")
def follow(
    request: Request,
    place: PlaceDep,
    last_event_id: Annotated[int, Header(ge=0, le=MAX_ID, description="continue after this event")] = 0,
) -> StreamingResponse:
    """Send every event after Last-Event-ID, then those to come; without the header, all from the beginning."""
    with place.read():  # there must be such a federation
        pass
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    feed: EventFeed = request.app.state.event_feed
    stream = feed.stream(place.name, last_event_id, StreamAccess.of(request))
    return StreamingResponse(stream, headers=headers, media_type="text/event-stream")


@events_router.get("/journal", summary="List what happened", responses=responses(404, 422))
@requires("operator", "read")
def journal(place: PlaceDep, page: PageDep) -> Page[Event]:
    """List the same events in pages."""
    with place.read() as (session, federation):
        return listings.events(session, federation, page)


health_router = APIRouter(tags=["health"])


@health_router.get("/healthz", summary="Does the process live?")
@anybody()
async def healthz() -> Health:
    """Answer; nothing else is asked."""
    return Health()


@health_router.get("/readyz", summary="Can the server work?", response_model=Health, responses=responses(503))
@anybody()
def readyz(request: Request, readiness: ReadinessDep) -> Health | Response:
    """Ask the database, the blob store, the disk, the broker's connection and the thread that handles messages."""
    wrong = readiness.problems()
    if wrong:
        return problem(request, 503, "Not ready", "; ".join(wrong))
    return Health()


@health_router.get("/metrics", include_in_schema=False)  # its form is Prometheus's, not OpenAPI's
@requires("operator", "read")
def metrics(request: Request) -> Response:
    """Show every figure in the text format; a key with the scope `read` opens it where keys are asked for."""
    found: Metrics = request.app.state.metrics
    return Response(found.render(), media_type=CONTENT_TYPE_LATEST)
