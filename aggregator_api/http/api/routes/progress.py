"""What a federation has done: rounds, participants, updates, metrics, and each device's part in them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from aggregator_api.auth.scopes import requires
from aggregator_api.devices.service import find
from aggregator_api.federations import service
from aggregator_api.http.api import queries
from aggregator_api.http.api.dependencies import MAX_ID, DatabaseDep, FederationName, PageDep, RoundNumber
from aggregator_api.http.api.device_history import history
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.api.schemas.resources import (
    Device,
    DeviceHistory,
    EnrolmentState,
    Page,
    Participant,
    ReportedMetric,
    RoundDetail,
    RoundView,
    UpdateStatus,
    UpdateView,
)

router = APIRouter(prefix="/v1/federations/{name}", tags=["progress"], responses=responses(404, 422))


@router.get("/rounds", summary="List the rounds")
@requires("operator", "read")
def rounds(database: DatabaseDep, name: FederationName, page: PageDep) -> Page[RoundView]:
    """List the rounds, the first one first."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        return queries.rounds(session, federation, page)


@router.get("/rounds/{number}", summary="Describe a round")
@requires("operator", "read")
def round_detail(database: DatabaseDep, name: FederationName, number: RoundNumber) -> RoundDetail:
    """Tell a round's phase and how many updates have come."""
    with database.read() as session:
        row = service.get_round(session, name, number)
        return queries.round_detail(session, row)


@router.get("/rounds/{number}/participants", summary="List the devices of a round")
@requires("operator", "read")
def participants(database: DatabaseDep, name: FederationName, number: RoundNumber, page: PageDep) -> Page[Participant]:
    """List the invited devices and late comers, with what they sent."""
    with database.read() as session:
        row = service.get_round(session, name, number)
        return queries.participants(session, row, page)


@router.get("/updates", summary="List the updates")
@requires("operator", "read")
def updates(
    database: DatabaseDep,
    name: FederationName,
    page: PageDep,
    status: Annotated[UpdateStatus | None, Query(description="only these")] = None,
) -> Page[UpdateView]:
    """List the updates that were accepted, and those excluded or in quarantine with the reason."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        return queries.updates(session, federation, status, page)


@router.get("/metrics", summary="List the metrics that devices reported")
@requires("operator", "read")
def metrics(
    database: DatabaseDep,
    name: FederationName,
    page: PageDep,
    round_number: Annotated[int | None, Query(alias="round", ge=1, le=MAX_ID, description="only this round's")] = None,
) -> Page[ReportedMetric]:
    """List what the devices measured themselves, of all rounds or of one."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        return queries.metrics(session, federation, round_number, page)


@router.get("/devices", summary="List the devices")
@requires("operator", "read")
def devices(
    database: DatabaseDep,
    name: FederationName,
    page: PageDep,
    enrolment: Annotated[EnrolmentState | None, Query(description="only these")] = None,
    suspended: Annotated[bool, Query(description="only those that no round invites, for their updates")] = False,
    tag: Annotated[str | None, Query(max_length=64, description="only those in this group")] = None,
) -> Page[Device]:
    """List the devices, their last words, their groups and where their enrolment stands."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        return queries.devices(session, federation, enrolment, tag, page, suspended=suspended)


@router.get("/devices/{device}", summary="Describe a device")
@requires("operator", "read")
def device_detail(database: DatabaseDep, name: FederationName, device: str) -> Device:
    """Tell a device's last word and where its enrolment stands."""
    with database.read() as session:
        row = find(session, name, device)[1]
        return Device.model_validate(row)


@router.get("/devices/{device}/history", summary="Tell what a device did")
@requires("operator", "read")
def device_history(database: DatabaseDep, name: FederationName, device: str, page: PageDep) -> DeviceHistory:
    """Tell a device's part in each round, what it sent and what became of that, and what it measured."""
    with database.read() as session:
        row = find(session, name, device)[1]
        return history(session, row, page)
