"""Rollouts: waves and what devices made of them; started, paused, halted and taken back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from aggregator_api.api import queries, rollout_queries
from aggregator_api.api.dependencies import DatabaseDep, FederationName, PageDep, RolloutServiceDep
from aggregator_api.api.routes import rollouts as rest
from aggregator_api.api.schemas.rollouts import AnswerName
from aggregator_api.errors import UnprocessableError
from aggregator_api.federations import service
from aggregator_api.rollouts.requests import NewRollout
from aggregator_api.web.forms import FormDep
from aggregator_api.web.histories import history_reader
from aggregator_api.web.pages import page
from gaitway.errors import first_problem

router = APIRouter()

Number = Annotated[int, Path(ge=1, le=2**31 - 1)]


@router.get("/federations/{name}/rollouts")
def listing(request: Request, database: DatabaseDep, name: FederationName, cursor: PageDep) -> Response:
    """List the rollouts."""
    with database.read() as session:
        row = service.named(session, name)
        found = rollout_queries.listing(session, row, cursor, newest_first=True)
        detail = queries.federation(session, row, history_reader(request).versions)
    settings = detail.plan.rollout
    return page(
        request, "rollouts.html", federation=name, found=found, detail=detail, settings=settings, cursor=cursor.cursor
    )


@router.post("/federations/{name}/rollouts")
def start(rollouts: RolloutServiceDep, name: str, form: FormDep) -> Response:
    """Begin to release a version."""
    try:
        wanted = NewRollout(version=int(form["version"]) if form.get("version", "").strip() else None)
    except ValidationError as error:
        raise UnprocessableError(first_problem(error, input_shown=True)) from error
    except ValueError as error:
        raise UnprocessableError("version: expected a whole number, or nothing for the newest") from error
    return _to(name, rollouts.start(name, wanted))


@router.get("/federations/{name}/rollouts/{number}")
def detail(
    request: Request,
    database: DatabaseDep,
    name: FederationName,
    number: Number,
    cursor: PageDep,
    answer: Annotated[AnswerName | None, Query()] = None,
) -> Response:
    """Show a rollout, wave by wave, and its devices."""
    found = rest.detail(database, name, number)
    told = rest.devices(database, name, number, cursor, answer)
    shown: dict[str, Any] = {"rollout": found, "told": told, "answer": answer, "cursor": cursor.cursor}
    return page(request, "rollout.html", federation=name, **shown)


@router.post("/federations/{name}/rollouts/{number}/pause")
def pause(rollouts: RolloutServiceDep, name: str, number: Number, form: FormDep) -> Response:
    """Let no further wave begin."""
    rollouts.pause(name, number)
    return _to(name, number)


@router.post("/federations/{name}/rollouts/{number}/resume")
def resume(rollouts: RolloutServiceDep, name: str, number: Number, form: FormDep) -> Response:
    """Go on with it."""
    rollouts.resume(name, number)
    return _to(name, number)


@router.post("/federations/{name}/rollouts/{number}/halt")
def halt(rollouts: RolloutServiceDep, name: str, number: Number, form: FormDep) -> Response:
    """Halt it, or take a completed one back."""
    rollouts.halt(name, number)
    return _to(name, number)


def _to(name: str, number: int) -> Response:
    return RedirectResponse(f"/federations/{name}/rollouts/{number}", 303)
