"""Federations: created, started, paused, stopped and deleted; their rounds, updates, figures and devices."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response

from aggregator_api.auth.scopes import requires
from aggregator_api.devices.service import find
from aggregator_api.federations import service
from aggregator_api.federations.service import FederationChanges, NewFederation
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.dependencies import (
    MAX_ID,
    CallerDep,
    DatabaseDep,
    DeletionServiceDep,
    FederationName,
    FederationServiceDep,
    PageDep,
    PlaceDep,
    RoundNumber,
    SettingsServiceDep,
)
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.devices import history
from aggregator_api.http.queries.listings import DeviceFilter
from aggregator_api.http.queries.resources import (
    Deleted,
    Device,
    DeviceHistory,
    EnrolmentState,
    FederationDetail,
    FederationPlan,
    FederationSummary,
    Page,
    Participant,
    ReportedMetric,
    RoundDetail,
    RoundView,
    UpdateStatus,
    UpdateView,
)
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
        return listings.federations(session, caller.federation, page)


@router.get("/{name}", summary="Describe a federation", responses=responses(404, 422))
@requires("operator", "read")
def detail(place: PlaceDep) -> FederationDetail:
    """Tell a federation's plan, its present round and its present model."""
    with place.read() as (session, federation):
        return listings.federation(session, federation)


@router.get("/{name}/plan", summary="Get a federation's plan, to simulate it", responses=responses(404, 422))
@requires("operator", "read")
def plan(place: PlaceDep) -> FederationPlan:
    """Answer with the plan, and the command that simulates the federation; `--plan` reads this answer as it is."""
    with place.read() as (session, federation):
        return FederationPlan(plan=listings.federation(session, federation).plan)


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
        return listings.federation(session, service.get_federation(session, name))


progress_router = APIRouter(prefix="/v1/federations/{name}", tags=["progress"], responses=responses(404, 422))


@progress_router.get("/rounds", summary="List the rounds")
@requires("operator", "read")
def rounds(place: PlaceDep, page: PageDep) -> Page[RoundView]:
    """List the rounds, the first one first."""
    with place.read() as (session, federation):
        return listings.rounds(session, federation, page)


@progress_router.get("/rounds/{number}", summary="Describe a round")
@requires("operator", "read")
def round_detail(database: DatabaseDep, name: FederationName, number: RoundNumber) -> RoundDetail:
    """Tell a round's phase and how many updates have come."""
    with database.read() as session:
        row = service.get_round(session, name, number)
        return listings.round_detail(session, row)


@progress_router.get("/rounds/{number}/participants", summary="List the devices of a round")
@requires("operator", "read")
def participants(database: DatabaseDep, name: FederationName, number: RoundNumber, page: PageDep) -> Page[Participant]:
    """List the invited devices and late comers, with what they sent."""
    with database.read() as session:
        row = service.get_round(session, name, number)
        return listings.participants(session, row, page)


@progress_router.get("/updates", summary="List the updates")
@requires("operator", "read")
def updates(
    place: PlaceDep, page: PageDep, status: Annotated[UpdateStatus | None, Query(description="only these")] = None
) -> Page[UpdateView]:
    """List the updates that were accepted, and those excluded or in quarantine with the reason."""
    with place.read() as (session, federation):
        return listings.updates(session, federation, status, page)


@progress_router.get("/metrics", summary="List the metrics that devices reported")
@requires("operator", "read")
def metrics(
    place: PlaceDep,
    page: PageDep,
    round_number: Annotated[int | None, Query(alias="round", ge=1, le=MAX_ID, description="only this round's")] = None,
) -> Page[ReportedMetric]:
    """List what the devices measured themselves, of all rounds or of one."""
    with place.read() as (session, federation):
        return listings.metrics(session, federation, round_number, page)


@progress_router.get("/devices", summary="List the devices")
@requires("operator", "read")
def devices(
    place: PlaceDep,
    page: PageDep,
    enrolment: Annotated[EnrolmentState | None, Query(description="only these")] = None,
    suspended: Annotated[bool, Query(description="only those that no round invites, for their updates")] = False,
    tag: Annotated[str | None, Query(max_length=64, description="only those in this group")] = None,
) -> Page[Device]:
    """List the devices, their last words, their groups and where their enrolment stands."""
    with place.read() as (session, federation):
        return listings.devices(session, federation, DeviceFilter(enrolment, tag, suspended), page)


@progress_router.get("/devices/{device}", summary="Describe a device")
@requires("operator", "read")
def device_detail(database: DatabaseDep, name: FederationName, device: str) -> Device:
    """Tell a device's last word and where its enrolment stands."""
    with database.read() as session:
        row = find(session, name, device)[1]
        return Device.model_validate(row)


@progress_router.get("/devices/{device}/history", summary="Tell what a device did")
@requires("operator", "read")
def device_history(database: DatabaseDep, name: FederationName, device: str, page: PageDep) -> DeviceHistory:
    """Tell a device's part in each round, what it sent and what became of that, and what it measured."""
    with database.read() as session:
        row = find(session, name, device)[1]
        return history(session, row, page)
