"""Rollouts: waves and what devices made of them; started, paused, halted and taken back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from sqlalchemy.orm import Session

from aggregator_api.api import queries, rollout_queries
from aggregator_api.api.dependencies import DatabaseDep, FederationName, PageDep, RolloutServiceDep
from aggregator_api.api.queries import PageParams
from aggregator_api.api.routes import rollouts as rest
from aggregator_api.api.schemas.rollouts import AnswerName
from aggregator_api.api.scores import metric_of
from aggregator_api.auth.scopes import requires
from aggregator_api.db.database import Database
from aggregator_api.db.models import FederationRow
from aggregator_api.errors import UnprocessableError
from aggregator_api.federations import service
from aggregator_api.rollouts.requests import NewRollout
from aggregator_api.web import views
from aggregator_api.web.forms import FormDep
from aggregator_api.web.history_cache import history_reader
from aggregator_api.web.pages import page, part
from federation.plan import Plan
from gaitway.errors import first_problem

router = APIRouter()

Number = Annotated[int, Path(ge=1, le=2**31 - 1)]
ChosenAnswer = Annotated[AnswerName | None, Query()]


@router.get("/federations/{name}/rollouts")
@requires("operator", "read")
def listing(request: Request, database: DatabaseDep, name: FederationName, cursor: PageDep) -> Response:
    """List the rollouts."""
    with database.read() as session:
        row = service.get_federation(session, name)
        shown = _listed(session, row, cursor)
        detail = queries.federation(session, row, history_reader(request).versions)
    return page(request, "rollouts.html", federation=name, detail=detail, settings=detail.plan.rollout, **shown)


@router.get("/live/federations/{name}/rollouts")
@requires("operator", "read")
def live_listing(request: Request, database: DatabaseDep, name: FederationName, cursor: PageDep) -> Response:
    """List them anew."""
    with database.read() as session:
        shown = _listed(session, service.get_federation(session, name), cursor)
    return part(request, "parts/rollouts.html", federation=name, **shown)


@router.post("/federations/{name}/rollouts")
@requires("operator")
def start(rollouts: RolloutServiceDep, name: str, form: FormDep) -> Response:
    """Begin to release a version."""
    try:
        version = int(form["version"]) if form.get("version", "").strip() else None
        wanted = NewRollout(version=version, force=bool(form.get("force")), reason=form.get("reason", ""))
    except ValidationError as error:
        raise UnprocessableError(first_problem(error, input_shown=True)) from error
    except ValueError as error:
        raise UnprocessableError("version: expected a whole number, or nothing for the newest") from error
    return _to(name, rollouts.start(name, wanted))


@router.get("/federations/{name}/rollouts/{number}")
@requires("operator", "read")
def detail(
    request: Request,
    database: DatabaseDep,
    name: FederationName,
    number: Number,
    cursor: PageDep,
    answer: ChosenAnswer = None,
) -> Response:
    """Show a rollout, wave by wave, and its devices."""
    shown = {**_now(database, name, number), **_waves(database, name, number, cursor, answer)}
    return page(request, "rollout.html", federation=name, **shown)


@router.get("/live/federations/{name}/rollouts/{number}/rollout")
@requires("operator", "read")
def live(request: Request, database: DatabaseDep, name: FederationName, number: Number) -> Response:
    """Show anew where it stands."""
    return part(request, "parts/rollout.html", federation=name, **_now(database, name, number))


@router.get("/live/federations/{name}/rollouts/{number}/waves")
@requires("operator", "read")
def live_waves(
    request: Request,
    database: DatabaseDep,
    name: FederationName,
    number: Number,
    cursor: PageDep,
    answer: ChosenAnswer = None,
) -> Response:
    """Show its waves and devices anew."""
    shown = {**_now(database, name, number), **_waves(database, name, number, cursor, answer)}
    return part(request, "parts/waves.html", federation=name, **shown)


@router.post("/federations/{name}/rollouts/{number}/pause")
@requires("operator")
def pause(rollouts: RolloutServiceDep, name: str, number: Number, form: FormDep) -> Response:
    """Let no further wave begin."""
    rollouts.pause(name, number)
    return _to(name, number)


@router.post("/federations/{name}/rollouts/{number}/resume")
@requires("operator")
def resume(rollouts: RolloutServiceDep, name: str, number: Number, form: FormDep) -> Response:
    """Go on with it."""
    rollouts.resume(name, number)
    return _to(name, number)


@router.post("/federations/{name}/rollouts/{number}/halt")
@requires("operator")
def halt(rollouts: RolloutServiceDep, name: str, number: Number, form: FormDep) -> Response:
    """Halt it, or take a completed one back."""
    rollouts.halt(name, number)
    return _to(name, number)


def _to(name: str, number: int) -> Response:
    return RedirectResponse(f"/federations/{name}/rollouts/{number}", 303)


def _listed(session: Session, row: FederationRow, cursor: PageParams) -> dict[str, Any]:
    found = rollout_queries.listing(session, row, cursor._replace(newest_first=True))
    return {"found": found, "cursor": cursor.cursor}


def _now(database: Database, name: str, number: int) -> dict[str, Any]:
    return {"rollout": rest.detail(database, name, number)}


def _waves(database: Database, name: str, number: int, cursor: PageParams, answer: AnswerName | None) -> dict[str, Any]:
    with database.read() as session:
        metric = metric_of(Plan.model_validate(service.get_federation(session, name).plan))[1]
    told = rest.devices(database, name, number, cursor, answer)
    return {"told": told, "answer": answer, "cursor": cursor.cursor, "metric": metric, "score_text": views.score_text}
