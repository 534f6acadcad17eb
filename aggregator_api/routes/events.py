"""What happens in a federation, live, as server-sent events (HTML standard, 9.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from aggregator_api import listings, records
from aggregator_api.listings import Window
from aggregator_api.problems import responses
from aggregator_api.routes.dependencies import MAX_ID, FederationDep, RuntimeDep, SessionDep, WindowDep
from aggregator_api.runtime import Runtime
from aggregator_api.views import Event, Page

router = APIRouter(prefix="/v1/federations/{name}", tags=["progress"])

POLL_S = 0.25
QUIET_POLLS = 60
BATCH = 200
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
    runtime: RuntimeDep,
    session: SessionDep,
    federation: FederationDep,
    last_event_id: Annotated[int, Header(ge=0, le=MAX_ID, description="go on after this event")] = 0,
) -> StreamingResponse:
    """Send every event after Last-Event-ID, then those to come; without the header, all from the beginning."""
    name = federation.name
    session.close()  # the stream may last for days; it reads in sessions of its own
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream(runtime, name, last_event_id), headers=headers, media_type="text/event-stream")


@router.get("/journal", summary="List what happened", responses=responses(404, 422))
def journal(session: SessionDep, federation: FederationDep, window: WindowDep) -> Page[Event]:
    """List the same events in pages."""
    return listings.events(session, federation, window)


async def stream(runtime: Runtime, name: str, last: int) -> AsyncIterator[str]:
    """Yield events as SSE until the server closes, and a comment now and then so that a dead client is noticed."""
    quiet = 0
    while not runtime.closing.is_set():
        found = await run_in_threadpool(_after, runtime, name, last)
        for event in found:
            last = event.id
            yield f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"
        quiet = 0 if found else quiet + 1
        if quiet == QUIET_POLLS:
            quiet = 0
            yield ": still here\n\n"
        if len(found) < BATCH:
            await asyncio.sleep(POLL_S)


def _after(runtime: Runtime, name: str, last: int) -> list[Event]:
    with runtime.database.read() as session:
        row = records.federation_named(session, name)
        return listings.events(session, row, Window(last, BATCH)).items if row else []
