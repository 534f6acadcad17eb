"""A federation: where its round stands, its rounds, scores, devices, journal and plan; and how it is steered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from sqlalchemy.orm import Session

from aggregator_api.auth.scopes import requires
from aggregator_api.http.dependencies import (
    MAX_ID,
    FederationServiceDep,
    PageDep,
    PlaceDep,
)
from aggregator_api.http.queries import listings, rounds
from aggregator_api.http.queries.listings import EventFilter, PageParams, latest_events
from aggregator_api.http.queries.resources import SIMULATE, UpdateStatus
from aggregator_api.http.queries.rounds import metric_of
from aggregator_api.http.web import views
from aggregator_api.http.web.forms import FormDep, pressed
from aggregator_api.http.web.pages import page, part
from aggregator_api.storage.db.event_kinds import EVENT_KINDS
from aggregator_api.storage.db.models import FederationRow

router = APIRouter()

Before = Annotated[int | None, Query(ge=1, le=MAX_ID)]
NOW, ROUNDS, GRID, JOURNAL = "now", "rounds", "grid", "journal"

EVENT_SUBJECTS = tuple(dict.fromkeys(kind.partition(".")[0] for kind in EVENT_KINDS))
"""What events are about, as the first part of their kind says."""
JOURNAL_SPANS = {"": (None, "any time"), "hour": (3600.0, "the last hour"), "day": (86_400.0, "the last day")}
JOURNAL_SPANS |= {"week": (604_800.0, "the last week")}
ShortText = Annotated[str, Query(max_length=64)]


class JournalFilter(NamedTuple):
    """What was chosen; words that nothing knows narrow nothing."""

    about: str
    device: str
    within: str

    def wanted(self, now: float) -> EventFilter:
        """Return which events that means at a time."""
        kinds = tuple(kind for kind in EVENT_KINDS if kind.partition(".")[0] == self.about)
        span = JOURNAL_SPANS.get(self.within, (None, ""))[0]
        return EventFilter(kinds, self.device, None if span is None else now - span)

    @property
    def is_on(self) -> bool:
        """Whether anything was chosen."""
        return any(self)


async def journal_filter(about: ShortText = "", device: ShortText = "", within: ShortText = "") -> JournalFilter:
    """Read what was chosen."""
    return JournalFilter(about, device.strip(), within)


JournalFilterDep = Annotated[JournalFilter, Depends(journal_filter)]


class PagePosition(NamedTuple):
    """What of a federation's page is shown: devices after an id, rounds before a number (None: the latest)."""

    cursor: int
    before: int | None


@router.get("/federations/{name}")
@requires("operator", "read")
def federation(request: Request, place: PlaceDep, cursor: PageDep, before: Before = None) -> Response:
    """Show a federation; of its rounds those before `before`, of its devices those after the cursor."""
    with place.read() as (session, row):
        found: dict[str, Any] = {}
        for gather in (_now, _rounds, _grid, _latest):
            found |= gather(session, row, request, PagePosition(cursor.cursor, before))
    return page(request, "federation.html", federation=place.name, **found)


@router.get("/live/federations/{name}/{shown}")
@requires("operator", "read")
def live(request: Request, place: PlaceDep, shown: str, cursor: PageDep, before: Before = None) -> Response:
    """Show a part of it anew."""
    gather = _PARTS.get(shown)
    with place.read() as (session, row):
        if shown == "scores":
            return JSONResponse(views.chart(session, row))
        found = (gather or _now)(session, row, request, PagePosition(cursor.cursor, before))
    return part(request, f"parts/{shown if gather else NOW}.html", federation=place.name, **found)


@router.get("/federations/{name}/journal")
@requires("operator", "read")
def journal(request: Request, place: PlaceDep, narrowed: JournalFilterDep, before: Before = None) -> Response:
    """List what happened, the newest first: of one device, of some kinds, within a time."""
    with place.read() as (session, row):
        events = latest_events(session, row, views.LISTED + 1, narrowed.wanted(time.time()), before=before)
    shown = events[: views.LISTED]
    following = shown[-1].id if len(events) > views.LISTED else None
    values: dict[str, Any] = {"events": shown, "before": following, "is_first": before is None, "narrowed": narrowed}
    return page(request, "journal.html", federation=place.name, subjects=EVENT_SUBJECTS, spans=JOURNAL_SPANS, **values)


@router.get("/federations/{name}/updates")
@requires("operator", "read")
def updates(request: Request, place: PlaceDep, cursor: PageDep, status: UpdateStatus = "quarantined") -> Response:
    """List the updates of one status, with the reasons."""
    with place.read() as (session, row):
        found = listings.updates(session, row, status, cursor._replace(newest_first=True))
    return page(request, "updates.html", federation=place.name, found=found, status_shown=status, cursor=cursor.cursor)


@router.get("/federations/{name}/plan")
@requires("operator", "read")
def plan(request: Request, place: PlaceDep) -> Response:
    """Show the plan, and the command that simulates it."""
    with place.read() as (session, row):
        detail = listings.federation(session, row)
    text = json.dumps(detail.plan.model_dump(mode="json"), indent=2, ensure_ascii=False)
    return page(request, "plan.html", federation=place.name, detail=detail, plan_text=text, simulate=SIMULATE)


@router.get("/federations/{name}/plan.json")
@requires("operator", "read")
def plan_file(place: PlaceDep) -> Response:
    """Send the plan as the file that `--plan` reads."""
    with place.read() as (session, row):
        detail = listings.federation(session, row)
    text = detail.plan.model_dump_json(indent=2)
    headers = {"Content-Disposition": 'attachment; filename="plan.json"'}
    return Response(text, media_type="application/json", headers=headers)


@router.post("/federations/{name}/pause")
@router.post("/federations/{name}/resume")
@router.post("/federations/{name}/stop")
@requires("operator")
def act(request: Request, federations: FederationServiceDep, name: str, form: FormDep) -> Response:
    """Do what the path ends in: let no further round begin or close, resume, or end the federation for good."""
    getattr(federations, pressed(request))(name)
    return RedirectResponse(f"/federations/{name}", 303)


def _now(session: Session, row: FederationRow, request: Request, _place: PagePosition) -> dict[str, Any]:
    shown: dict[str, Any] = {"summary": views.summary(session, row)}
    return {**shown, "open_to_all": not request.app.state.runtime.settings.enrolled_only}


def _rounds(session: Session, row: FederationRow, request: Request, place: PagePosition) -> dict[str, Any]:
    found, older = views.timeline(session, row, place.before)
    begin, end = views.timeline_bounds(found)
    metric = metric_of(row.parsed_plan)[1]
    shown: dict[str, Any] = {"rounds": found, "line_begin": begin, "line_end": end, "metric": metric}
    shown |= {"before": place.before, "older": older, "cursor": place.cursor}
    return {**shown, "score_text": views.score_text}


def _grid(session: Session, row: FederationRow, _request: Request, place: PagePosition) -> dict[str, Any]:
    wanted = PageParams(place.cursor, views.GRID_DEVICES)
    found = rounds.grid(session, row, views.GRID_ROUNDS, wanted)
    return {"grid": found, "cursor": place.cursor, "before": place.before}


def _latest(session: Session, row: FederationRow, _request: Request, _place: PagePosition) -> dict[str, Any]:
    return {"events": latest_events(session, row, 12)}


_PARTS: dict[str, Callable[[Session, FederationRow, Request, PagePosition], dict[str, Any]]] = {
    NOW: _now,
    ROUNDS: _rounds,
    GRID: _grid,
    JOURNAL: _latest,
}
