"""Federations: create, list, describe, steer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response

from aggregator_api.api import queries
from aggregator_api.api.middleware.problems import responses
from aggregator_api.api.routes.dependencies import CallerDep, FederationName, PageDep, RuntimeDep
from aggregator_api.api.schemas.resources import Deleted, FederationDetail, FederationPlan, FederationSummary, Page
from aggregator_api.federations import changes, service
from aggregator_api.federations.requests import FederationChanges, NewFederation
from aggregator_api.retention import deletion
from aggregator_api.runtime import Runtime

router = APIRouter(prefix="/v1/federations", tags=["federations"])

Force = Annotated[bool, Query(description="also one that has not ended: it is stopped first")]
DryRun = Annotated[bool, Query(description="only tell what would be deleted")]
EXAMPLE = {
    "name": "walk",
    "plan": {
        "labels": ["still", "walking"],
        "model": {"name": "cnn"},
        "method": {"name": "fedavg"},
        "training": {"classes": 2, "feature_dim": 192},
        "rounds": {"rounds": 3, "clients_per_round": 2},
    },
}


@router.post("", status_code=201, summary="Create a federation", responses=responses(409, 413, 422))
def create(
    runtime: RuntimeDep,
    new: Annotated[NewFederation, Body(openapi_examples={"fedavg": {"value": EXAMPLE}})],
    response: Response,
) -> FederationDetail:
    """Check the plan, make the initial model from its seed, and wait for devices."""
    service.create_federation(runtime, new)
    response.headers["Location"] = f"/v1/federations/{new.name}"
    return _describe(runtime, new.name)


@router.get("", summary="List the federations", responses=responses(422))
def listing(runtime: RuntimeDep, caller: CallerDep, page: PageDep) -> Page[FederationSummary]:
    """List the federations that the key is for, in the order of their creation."""
    with runtime.database.read() as session:
        return queries.federations(session, caller.federation, page)


@router.get("/{name}", summary="Describe a federation", responses=responses(404, 422))
def detail(runtime: RuntimeDep, name: FederationName) -> FederationDetail:
    """Tell a federation's plan, its present round and its present model."""
    with runtime.database.read() as session:
        federation = service.named(session, name)
        return queries.federation(session, federation)


@router.get("/{name}/plan", summary="Get a federation's plan, to simulate it", responses=responses(404, 422))
def plan(runtime: RuntimeDep, name: FederationName) -> FederationPlan:
    """Answer with the plan, and the command that simulates the federation; `--plan` reads this answer as it is."""
    with runtime.database.read() as session:
        return FederationPlan(plan=queries.federation(session, service.named(session, name)).plan)


@router.patch("/{name}", summary="Change a federation's round settings", responses=responses(404, 409, 413, 422))
def change(runtime: RuntimeDep, name: str, wanted: FederationChanges) -> FederationDetail:
    """Change how rounds are selected and closed; a new deadline holds for the open round too, from its opening on."""
    changes.change(runtime, name, wanted)
    return _describe(runtime, name)


@router.post("/{name}/pause", summary="Pause a federation", responses=responses(404, 409, 422))
def pause(runtime: RuntimeDep, name: str) -> FederationDetail:
    """Let no further round begin or close; updates are still taken."""
    service.pause(runtime, name)
    return _describe(runtime, name)


@router.post("/{name}/resume", summary="Resume a paused federation", responses=responses(404, 409, 422))
def resume(runtime: RuntimeDep, name: str) -> FederationDetail:
    """Resume a paused federation."""
    service.resume(runtime, name)
    return _describe(runtime, name)


@router.post("/{name}/stop", summary="Stop a federation for good", responses=responses(404, 409, 422))
def stop(runtime: RuntimeDep, name: str) -> FederationDetail:
    """End the federation; its open round fails, its present model stays."""
    service.stop(runtime, name)
    return _describe(runtime, name)


@router.delete("/{name}", summary="Delete a federation", responses=responses(404, 409, 422, 503))
def delete(runtime: RuntimeDep, name: str, force: Force = False, dry_run: DryRun = False) -> Deleted:
    """Delete it with its devices, their broker accounts, rounds, models and events; the audit stays."""
    found = deletion.delete_federation(runtime, name, force=force, dry_run=dry_run)
    return Deleted(dry_run=dry_run, rows=found.rows)


def _describe(runtime: Runtime, name: str) -> FederationDetail:
    with runtime.database.read() as session:
        return queries.federation(session, service.named(session, name))
