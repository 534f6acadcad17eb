"""What routes ask for: the runtime, the caller, and which part of a listing is wanted.

A session is none of it. FastAPI opens and closes a dependency on threads of its own choosing and keeps it until the
answer has been sent, so a slow reader would keep a connection of the pool. A route is a plain `def`: it opens a
session, makes its answer, and closes it, all in one thread.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from aggregator_api.api import openapi
from aggregator_api.api.queries import PageParams
from aggregator_api.auth.api_keys import Caller
from aggregator_api.errors import UnprocessableError
from aggregator_api.runtime import Runtime

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
    """Return who asks, as authentication found out."""
    found: Caller = request.state.caller
    return found


CallerDep = Annotated[Caller, Depends(caller_of)]


FederationName = Annotated[str, Path(description="the federation")]
RoundNumber = Annotated[int, Path(ge=1, le=MAX_ID)]


async def page_params(
    cursor: Annotated[int, Query(ge=0, le=MAX_ID, description="`next_cursor` of the page before")] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> PageParams:
    """Read which part of a listing is wanted."""
    return PageParams(cursor, limit)


PageDep = Annotated[PageParams, Depends(page_params)]
