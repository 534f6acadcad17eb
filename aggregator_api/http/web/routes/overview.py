"""The overview: every federation that the key is for, and what needs attention."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response

from aggregator_api.auth.api_keys import Caller
from aggregator_api.auth.scopes import requires
from aggregator_api.http.api.dependencies import CallerDep, DatabaseDep, PageDep, ReadinessDep
from aggregator_api.http.api.queries import PageParams
from aggregator_api.http.web import views
from aggregator_api.http.web.pages import may_act, page, part
from aggregator_api.notifications import attention
from aggregator_api.operations.health import Readiness
from aggregator_api.storage.db.database import Database

router = APIRouter()


@router.get("/")
@requires("operator", "read", filtered=True, below=("/federations", "/events"))
def overview(
    request: Request, database: DatabaseDep, readiness: ReadinessDep, caller: CallerDep, cursor: PageDep
) -> Response:
    """Show where everything stands."""
    return page(request, "overview.html", **_found(request, database, readiness, caller, cursor))


@router.get("/live/overview")
@requires("operator", "read", filtered=True, below=("/live", "/live/federations/{name}"))
def live(
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
