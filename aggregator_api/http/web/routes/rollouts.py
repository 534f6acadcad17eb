"""Rollouts: waves and what devices made of them; started, paused, halted and taken back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import UnprocessableError
from aggregator_api.federations import service
from aggregator_api.federations.service import FederationChanges
from aggregator_api.http.dependencies import (
    MAX_ID,
    DatabaseDep,
    FederationName,
    PageDep,
    PlaceDep,
    RolloutNumber,
    RolloutServiceDep,
    SettingsServiceDep,
)
from aggregator_api.http.queries import listings
from aggregator_api.http.queries import rollouts as rollout_queries
from aggregator_api.http.queries.listings import EventFilter, PageParams, latest_events
from aggregator_api.http.queries.rollouts import AnswerName
from aggregator_api.http.queries.rounds import metric_of
from aggregator_api.http.web import views
from aggregator_api.http.web.forms import FormDep, pressed, validated, whole_number
from aggregator_api.http.web.pages import page, part
from aggregator_api.http.web.routes.releases import OWN, refuse_changed
from aggregator_api.rollouts.release_steps import present_version
from aggregator_api.rollouts.service import (
    SCHEDULES,
    NewRollout,
    get_rollout,
    release_settings,
    schedule_of,
)
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.event_kinds import EVENT_KINDS
from aggregator_api.storage.db.models import FederationRow
from federation.rounds.rollout import RolloutPhase

router = APIRouter()

ChosenAnswer = Annotated[AnswerName | None, Query()]
Before = Annotated[int | None, Query(ge=1, le=MAX_ID)]
TIMELINE_EVENTS = 50
VERSION_KINDS = tuple(
    kind
    for kind in EVENT_KINDS
    if kind.startswith("model.") or kind in {f"rollout.{word}" for word in (*RolloutPhase, "started", "wave")}
)
"""What happens to versions as a whole: names, gates that hold one back, waves, halts, regressions."""
MODES = {
    "automatic": "each new version is rolled out by itself, once the rollout before it is completed",
    "manual": "a version is rolled out when an operator says so",
    "off": "a device uses what it trained itself, and in the end the last version",
}


@router.get("/federations/{name}/rollouts")
@requires("operator", "read")
def listing(request: Request, place: PlaceDep, cursor: PageDep, before: Before = None) -> Response:
    """List the rollouts, how models are released, and what happened to versions (before that event)."""
    with place.read() as (session, row):
        shown = {**_listed(session, row, cursor), **_timeline(session, row, before)}
        detail = listings.federation(session, row)
        newest = detail.model.version
    shown |= {"settings": detail.plan.rollout, "modes": MODES, "schedules": SCHEDULES, "newest": newest}
    shown |= {"schedule": schedule_of(detail.plan.rollout) or OWN, "own": OWN, "before": before}
    return page(request, "rollouts.html", federation=place.name, **shown)


@router.get("/live/federations/{name}/rollouts")
@requires("operator", "read")
def live_listing(request: Request, place: PlaceDep, cursor: PageDep, before: Before = None) -> Response:
    """List them anew."""
    with place.read() as (session, row):
        shown = {**_listed(session, row, cursor), **_timeline(session, row, before)}
    return part(request, "parts/rollouts.html", federation=place.name, before=before, **shown)


@router.post("/federations/{name}")
@requires("operator")
def change(settings: SettingsServiceDep, name: FederationName, form: FormDep) -> Response:
    """Change how the federation releases its models."""
    mode, schedule = form.get("mode", ""), _schedule(form.get("schedule", ""))
    wanted = {"mode": mode} if schedule == OWN else release_settings(mode, schedule)
    settings.change(name, validated(FederationChanges, {"rollout": wanted}))
    return RedirectResponse(f"/federations/{name}/rollouts", 303)


@router.post("/federations/{name}/rollouts")
@requires("operator")
def start(rollouts: RolloutServiceDep, place: PlaceDep, form: FormDep) -> Response:
    """Begin to release a version, by a schedule of waves where one is chosen."""
    schedule = SCHEDULES.get(_schedule(form.get("schedule", "") or OWN))
    waves = {} if schedule is None else {"waves": schedule.waves, "soak_s": schedule.soak_s}
    with place.read() as (session, row):
        refuse_changed(form, "what devices use", present_version(session, row))
    fields = {"force": bool(form.get("force")), "reason": form.get("reason", "")}
    wanted = validated(NewRollout, {"version": whole_number(form, "version"), **fields, **waves})
    return _to(place.name, rollouts.start(place.name, wanted))


@router.get("/federations/{name}/rollouts/{number}")
@requires("operator", "read")
def detail(
    request: Request,
    database: DatabaseDep,
    name: FederationName,
    number: RolloutNumber,
    cursor: PageDep,
    answer: ChosenAnswer = None,
) -> Response:
    """Show a rollout, wave by wave, and its devices."""
    shown = {**_now(database, name, number), **_waves(database, name, number, cursor, answer)}
    return page(request, "rollout.html", federation=name, **shown)


@router.get("/live/federations/{name}/rollouts/{number}/rollout")
@requires("operator", "read")
def live(request: Request, database: DatabaseDep, name: FederationName, number: RolloutNumber) -> Response:
    """Show anew where it stands."""
    return part(request, "parts/rollout.html", federation=name, **_now(database, name, number))


@router.get("/live/federations/{name}/rollouts/{number}/waves")
@requires("operator", "read")
def live_waves(
    request: Request,
    database: DatabaseDep,
    name: FederationName,
    number: RolloutNumber,
    cursor: PageDep,
    answer: ChosenAnswer = None,
) -> Response:
    """Show its waves and devices anew."""
    shown = {**_now(database, name, number), **_waves(database, name, number, cursor, answer)}
    return part(request, "parts/waves.html", federation=name, **shown)


@router.post("/federations/{name}/rollouts/{number}/pause")
@router.post("/federations/{name}/rollouts/{number}/resume")
@router.post("/federations/{name}/rollouts/{number}/halt")
@requires("operator")
def act(request: Request, rollouts: RolloutServiceDep, name: str, number: RolloutNumber, form: FormDep) -> Response:
    """Do what the path ends in: let no further wave begin, resume, or halt it, also a completed one."""
    getattr(rollouts, pressed(request))(name, number)
    return _to(name, number)


def _schedule(name: str) -> str:
    if name not in (*SCHEDULES, OWN):
        raise UnprocessableError(f"schedule: {name[:40]!r} is none of {', '.join((*SCHEDULES, OWN))}")
    return name


def _to(name: str, number: int) -> Response:
    return RedirectResponse(f"/federations/{name}/rollouts/{number}", 303)


def _listed(session: Session, row: FederationRow, cursor: PageParams) -> dict[str, Any]:
    found = rollout_queries.listing(session, row, cursor._replace(newest_first=True))
    return {"found": found, "cursor": cursor.cursor}


def _timeline(session: Session, row: FederationRow, before: int | None) -> dict[str, Any]:
    events = latest_events(session, row, TIMELINE_EVENTS + 1, EventFilter(kinds=VERSION_KINDS), before=before)
    shown = events[:TIMELINE_EVENTS]
    return {"events": shown, "older": shown[-1].id if len(events) > TIMELINE_EVENTS else None}


def _now(database: Database, name: str, number: int) -> dict[str, Any]:
    with database.read() as session:
        return {"rollout": rollout_queries.detail(session, get_rollout(session, name, number))}


def _waves(database: Database, name: str, number: int, cursor: PageParams, answer: AnswerName | None) -> dict[str, Any]:
    with database.read() as session:
        metric = metric_of(service.get_federation(session, name).parsed_plan)[1]
        page = rollout_queries.devices(session, get_rollout(session, name, number), answer, cursor)
    return {"told": page, "answer": answer, "cursor": cursor.cursor, "metric": metric, "score_text": views.score_text}
