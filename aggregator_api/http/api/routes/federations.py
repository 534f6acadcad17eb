"""Federations: create, list, describe, steer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response

from aggregator_api.auth.scopes import requires
from aggregator_api.federations import service
from aggregator_api.federations.service import FederationChanges, NewFederation
from aggregator_api.http.api import queries
from aggregator_api.http.api.dependencies import (
    CallerDep,
    DatabaseDep,
    DeletionServiceDep,
    FederationName,
    FederationServiceDep,
    PageDep,
    SettingsServiceDep,
)
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.api.schemas.resources import Deleted, FederationDetail, FederationPlan, FederationSummary, Page
from aggregator_api.storage.db.database import Database

router = APIRouter(prefix="/v1/federations", tags=["federations"])

Force = Annotated[bool, Query(description="also one that has not ended: it is stopped first")]
DryRun = Annotated[bool, Query(description="only tell what would be deleted")]
EXAMPLE = {
    "name": "walk",
    "plan": {
        "labels": ["still", "walking"],
        "model": {"name": "har_cnn"},
        "method": {"name": "fedavg"},
        "training": {"classes": 2, "feature_dim": 192},
        "rounds": {"rounds": 3, "clients_per_round": 2},
    },
}


@router.post("", status_code=201, summary="Create a federation", responses=responses(404, 409, 413, 422, 503))
@requires("operator")
def create(
    federations: FederationServiceDep,
    database: DatabaseDep,
    new: Annotated[NewFederation, Body(openapi_examples={"fedavg": {"value": EXAMPLE}})],
    response: Response,
) -> FederationDetail:
    """Check the plan, make the initial model from its seed, and wait for devices."""
    federations.create(new)
    response.headers["Location"] = f"/v1/federations/{new.name}"
    return _describe(database, new.name)


@router.get("", summary="List the federations", responses=responses(422))
@requires("operator", "read", filtered=True)
def listing(database: DatabaseDep, caller: CallerDep, page: PageDep) -> Page[FederationSummary]:
    """List the federations that the key is for, in the order of their creation."""
    with database.read() as session:
        return queries.federations(session, caller.federation, page)


@router.get("/{name}", summary="Describe a federation", responses=responses(404, 422))
@requires("operator", "read")
def detail(database: DatabaseDep, name: FederationName) -> FederationDetail:
    """Tell a federation's plan, its present round and its present model."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        return queries.federation(session, federation)


@router.get("/{name}/plan", summary="Get a federation's plan, to simulate it", responses=responses(404, 422))
@requires("operator", "read")
def plan(database: DatabaseDep, name: FederationName) -> FederationPlan:
    """Answer with the plan, and the command that simulates the federation; `--plan` reads this answer as it is."""
    with database.read() as session:
        return FederationPlan(plan=queries.federation(session, service.get_federation(session, name)).plan)


@router.patch("/{name}", summary="Change a federation's round settings", responses=responses(404, 409, 413, 422))
@requires("operator")
def change(
    settings: SettingsServiceDep, database: DatabaseDep, name: str, wanted: FederationChanges
) -> FederationDetail:
    """Change how rounds are selected and closed; a new deadline holds for the open round too, from its opening on."""
    settings.change(name, wanted)
    return _describe(database, name)


@router.post("/{name}/pause", summary="Pause a federation", responses=responses(404, 409, 422))
@requires("operator")
def pause(federations: FederationServiceDep, database: DatabaseDep, name: str) -> FederationDetail:
    """Let no further round begin or close; updates are still taken."""
    federations.pause(name)
    return _describe(database, name)


@router.post("/{name}/resume", summary="Resume a paused federation", responses=responses(404, 409, 422))
@requires("operator")
def resume(federations: FederationServiceDep, database: DatabaseDep, name: str) -> FederationDetail:
    """Resume a paused federation."""
    federations.resume(name)
    return _describe(database, name)


@router.post("/{name}/stop", summary="Stop a federation for good", responses=responses(404, 409, 422))
@requires("operator")
def stop(federations: FederationServiceDep, database: DatabaseDep, name: str) -> FederationDetail:
    """End the federation; its open round fails, its present model stays."""
    federations.stop(name)
    return _describe(database, name)


@router.delete("/{name}", summary="Delete a federation", responses=responses(404, 409, 422, 503))
@requires("operator")
def delete(deletion: DeletionServiceDep, name: str, force: Force = False, dry_run: DryRun = False) -> Deleted:
    """Delete it with its devices, their broker accounts, rounds, models and events; the audit stays."""
    found = deletion.delete_federation(name, force=force, dry_run=dry_run)
    return Deleted(dry_run=dry_run, rows=found.rows)


def _describe(database: Database, name: str) -> FederationDetail:
    with database.read() as session:
        return queries.federation(session, service.get_federation(session, name))
