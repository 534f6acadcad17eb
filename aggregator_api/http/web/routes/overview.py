"""The overview of all federations, their comparison, the audit log, and what is shown live."""

from __future__ import annotations

import time
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import select

from aggregator_api.auth.api_keys import Caller
from aggregator_api.auth.scopes import requires
from aggregator_api.auth.sessions import StreamAccess
from aggregator_api.core.errors import ForbiddenError, UnprocessableError
from aggregator_api.federations import service
from aggregator_api.http.dependencies import CallerDep, DatabaseDep, PageDep, PlaceDep, ReadinessDep
from aggregator_api.http.event_feed import ALL, EventFeed
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.comparisons import MAX_COMPARED, ComparedFederation, compared, paired
from aggregator_api.http.queries.listings import PageParams
from aggregator_api.http.queries.rounds import latest_rounds, round_scores
from aggregator_api.http.web import views
from aggregator_api.http.web.pages import may_act, page, part
from aggregator_api.notifications import attention
from aggregator_api.operations.health import Readiness
from aggregator_api.storage.db.audit import Filters
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import FederationRow

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
def of_federation(request: Request, place: PlaceDep) -> StreamingResponse:
    """Follow one federation."""
    with place.read():  # there must be such a federation
        pass
    return _stream(request, place.name)


def _stream(request: Request, name: str) -> StreamingResponse:
    feed: EventFeed = request.app.state.event_feed
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        feed.changes(name, StreamAccess.of(request)), headers=headers, media_type="text/event-stream"
    )


comparison_router = APIRouter()

OFFERED = 200
Names = Annotated[list[str] | None, Query(alias="federation", max_length=64)]


class ScoreCurve(NamedTuple):
    """A federation's mean score over rounds, in the coordinates of a chart of 1000 by 300."""

    name: str
    points: str
    summary: str


class CurveChart(NamedTuple):
    """Several curves, and what the axes reach from and to."""

    curves: list[ScoreCurve]
    rounds: tuple[int, int]
    scores: tuple[float, float]


@comparison_router.get("/compare")
@requires("operator", "read", filtered=True)
def compare(request: Request, database: DatabaseDep, caller: CallerDep, names: Names = None) -> Response:
    """Show federations side by side; the first is what the others are held against."""
    wanted = list(dict.fromkeys(name for name in names or [] if name))
    if len(wanted) > MAX_COMPARED:
        raise UnprocessableError(f"federation: got {len(wanted)}; expected at most {MAX_COMPARED}")
    if caller.federation is not None and set(wanted) - {caller.federation}:
        raise ForbiddenError(f"the key {caller.id} is for the federation {caller.federation!r} alone")
    with database.read() as session:
        offered = select(FederationRow.name).order_by(FederationRow.id.desc()).limit(OFFERED)
        if caller.federation is not None:
            offered = offered.where(FederationRow.name == caller.federation)
        known = session.scalars(offered).all()
        rows = [service.get_federation(session, name) for name in wanted]
        numbers = [[round_row.number for round_row in latest_rounds(session, row, views.CHART_ROUNDS)] for row in rows]
        found = [compared(row, round_scores(session, row, n)) for row, n in zip(rows, numbers, strict=True)]
        same = len({federation.plan.task.get("name") for federation in found}) <= 1
        pairs = [
            paired(session, row, federation.last_round, rows[0], found[0].last_round)
            for row, federation in zip(rows[1:], found[1:], strict=True)
            if same
        ]
    labels = list(dict.fromkeys(label for federation in found for label in federation.plan.labels))
    values: dict[str, Any] = {
        "found": found,
        "pairs": pairs,
        "labels": labels,
        "offered": known,
        "wanted": wanted,
        "same": same,
    }
    values |= {"chart": _chart(found) if same else None, "score_text": views.score_text, "most": MAX_COMPARED}
    return page(request, "compare.html", **values)


def _chart(found: list[ComparedFederation]) -> CurveChart | None:
    """Lay the curves out; None where there is nothing to see."""
    numbers = [number for federation in found for number in federation.scores]
    means = [score.mean for federation in found for score in federation.scores.values()]
    if not numbers:
        return None
    first, last, low, high = min(numbers), max(numbers), min(means), max(means)
    low, high = (low - 0.05 * abs(low or 1), high + 0.05 * abs(high or 1)) if low == high else (low, high)
    curves = []
    for federation in found:
        at = [
            (1000 * (number - first) / max(1, last - first), 300 - 300 * (score.mean - low) / (high - low))
            for number, score in sorted(federation.scores.items())
        ]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        last_score = views.score_text(federation.metric, federation.last.mean) if federation.last else ""
        text = f"{last_score} in round {federation.last_round}" if last_score else "not measured yet"
        curves.append(ScoreCurve(federation.name, points, f"{federation.name}: {text}"))
    return CurveChart(curves, (first, last), (low, high))
