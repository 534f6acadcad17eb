"""What routes ask for: the runtime, a session, and the rows that a path names, each looked up once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from sqlalchemy.orm import Session

from aggregator_api import approval, openapi, records
from aggregator_api.errors import NotFoundError, UnprocessableError
from aggregator_api.keys import Caller
from aggregator_api.listings import Window
from aggregator_api.runtime import Runtime
from aggregator_api.service import named
from aggregator_api.tables import DeviceRow, FederationRow, RoundRow

MAX_ID = 2**62

# What does not wait for a disk or a database is `async`: each other step of a request waits for a thread, and on a busy
# server for Python's lock.


async def runtime_of(request: Request) -> Runtime:
    """Return the process's runtime."""
    found: Runtime = request.app.state.runtime
    return found


RuntimeDep = Annotated[Runtime, Depends(runtime_of)]


async def known_query(request: Request) -> None:
    """Refuse a parameter that the route does not have: a misspelt filter would show too much."""
    if not request.query_params or not request.url.path.startswith("/v1/"):
        return  # whoever watches a server may add what it likes
    operations = openapi.describe(request.app)["paths"].get(request.scope["route"].path, {})
    described = operations.get(request.method.lower(), {}).get("parameters", [])
    known = {parameter["name"] for parameter in described if parameter["in"] == "query"}
    for name in request.query_params:
        if name not in known:
            listed = f"known here: {', '.join(sorted(known))}" if known else "none is known here"
            raise UnprocessableError(f"query parameter {name[:80]!r}: {listed}")


async def caller_of(request: Request) -> Caller:
    """Return who asks, as the gate found out."""
    found: Caller = request.state.caller
    return found


CallerDep = Annotated[Caller, Depends(caller_of)]


def session_of(runtime: RuntimeDep) -> Iterator[Session]:
    """Open a reading session for one request."""
    with runtime.database.read() as session:
        yield session


SessionDep = Annotated[Session, Depends(session_of)]


def federation_of(session: SessionDep, name: Annotated[str, Path(description="the federation")]) -> FederationRow:
    """Find the federation that the path names."""
    return named(session, name)


FederationDep = Annotated[FederationRow, Depends(federation_of)]


def round_of(session: SessionDep, federation: FederationDep, number: Annotated[int, Path(ge=1, le=MAX_ID)]) -> RoundRow:
    """Find the round that the path names."""
    found = records.round_numbered(session, federation, number)
    if found is None:
        last = records.last_number(session, federation)
        raise NotFoundError(f"federation {federation.name!r} has no round {number}; the latest is {last}")
    return found


RoundDep = Annotated[RoundRow, Depends(round_of)]


def device_of(session: SessionDep, federation: FederationDep, device: str) -> DeviceRow:
    """Find the device that the path names."""
    return approval.find(session, federation.name, device)[1]


DeviceDep = Annotated[DeviceRow, Depends(device_of)]


async def window_of(
    cursor: Annotated[int, Query(ge=0, le=MAX_ID, description="`next_cursor` of the page before")] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Window:
    """Read which part of a listing is wanted."""
    return Window(cursor, limit)


WindowDep = Annotated[Window, Depends(window_of)]
