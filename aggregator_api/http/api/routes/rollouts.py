"""Rollouts: the staged release of model versions to devices."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response

from aggregator_api.auth.scopes import requires
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.dependencies import (
    DatabaseDep,
    FederationName,
    PageDep,
    PlaceDep,
    RolloutNumber,
    RolloutServiceDep,
)
from aggregator_api.http.queries import rollouts as rollout_queries
from aggregator_api.http.queries.resources import Page
from aggregator_api.http.queries.rollouts import AnswerName, RolloutDetail, RolloutDevice, RolloutView
from aggregator_api.rollouts.service import NewRollout, get_rollout
from aggregator_api.storage.db.database import Database

router = APIRouter(prefix="/v1/federations/{name}/rollouts", tags=["rollouts"], responses=responses(404, 422))

EXAMPLES = {
    "newest": {"value": {}},
    "a group first": {"value": {"version": 3, "waves": [{"tags": ["pilot"]}, 0.25, 1.0]}},
}


@router.post("", status_code=201, summary="Start a rollout", responses=responses(409, 413))
@requires("operator")
def start(
    rollouts: RolloutServiceDep,
    database: DatabaseDep,
    name: str,
    new: Annotated[NewRollout, Body(openapi_examples=EXAMPLES)],
    response: Response,
) -> RolloutDetail:
    """Release a version in waves, as the body or the federation's `plan.rollout` says; training continues as before."""
    number = rollouts.start(name, new)
    response.headers["Location"] = f"/v1/federations/{name}/rollouts/{number}"
    return _describe(database, name, number)


@router.get("", summary="List the rollouts")
@requires("operator", "read")
def listing(place: PlaceDep, page: PageDep) -> Page[RolloutView]:
    """List the rollouts, the first one first."""
    with place.read() as (session, federation):
        return rollout_queries.listing(session, federation, page)


@router.get("/{number}", summary="Describe a rollout")
@requires("operator", "read")
def detail(database: DatabaseDep, name: FederationName, number: RolloutNumber) -> RolloutDetail:
    """Tell how far a rollout has come, wave by wave."""
    with database.read() as session:
        return rollout_queries.detail(session, get_rollout(session, name, number))


@router.get("/{number}/devices", summary="List the devices of a rollout")
@requires("operator", "read")
def devices(
    database: DatabaseDep,
    name: FederationName,
    number: RolloutNumber,
    page: PageDep,
    answer: Annotated[AnswerName | None, Query(description="only these")] = None,
) -> Page[RolloutDevice]:
    """List the devices that were told so far, with their scores and reasons."""
    with database.read() as session:
        row = get_rollout(session, name, number)
        return rollout_queries.devices(session, row, answer, page)


@router.post("/{number}/pause", summary="Pause a rollout", responses=responses(409))
@requires("operator")
def pause(rollouts: RolloutServiceDep, database: DatabaseDep, name: str, number: RolloutNumber) -> RolloutDetail:
    """Let no further wave begin; it is halted all the same where too many devices fail."""
    rollouts.pause(name, number)
    return _describe(database, name, number)


@router.post("/{number}/resume", summary="Resume a paused rollout", responses=responses(409))
@requires("operator")
def resume(rollouts: RolloutServiceDep, database: DatabaseDep, name: str, number: RolloutNumber) -> RolloutDetail:
    """Resume it; the present wave begins anew."""
    rollouts.resume(name, number)
    return _describe(database, name, number)


@router.post("/{number}/halt", summary="Halt a rollout, or take a completed one back", responses=responses(409))
@requires("operator")
def halt(rollouts: RolloutServiceDep, database: DatabaseDep, name: str, number: RolloutNumber) -> RolloutDetail:
    """Have every device that uses the version go back to the model that it used before."""
    rollouts.halt(name, number)
    return _describe(database, name, number)


def _describe(database: Database, name: str, number: int) -> RolloutDetail:
    with database.read() as session:
        return rollout_queries.detail(session, get_rollout(session, name, number))
