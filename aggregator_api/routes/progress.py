"""What a federation has done: rounds, participants, updates, metrics, and each device's part in them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from aggregator_api import history, listings
from aggregator_api.problems import responses
from aggregator_api.routes.dependencies import MAX_ID, DeviceDep, FederationDep, RoundDep, SessionDep, WindowDep
from aggregator_api.views import (
    Device,
    DeviceHistory,
    EnrolmentState,
    Metric,
    Page,
    Participant,
    RoundDetail,
    RoundView,
    UpdateView,
)

router = APIRouter(prefix="/v1/federations/{name}", tags=["progress"], responses=responses(404, 422))


@router.get("/rounds", summary="List the rounds")
def rounds(session: SessionDep, federation: FederationDep, window: WindowDep) -> Page[RoundView]:
    """List the rounds, the first one first."""
    return listings.rounds(session, federation, window)


@router.get("/rounds/{number}", summary="Describe a round")
def round_detail(session: SessionDep, row: RoundDep) -> RoundDetail:
    """Tell a round's phase and how many updates have come."""
    return listings.round_detail(session, row)


@router.get("/rounds/{number}/participants", summary="List the devices of a round")
def participants(session: SessionDep, row: RoundDep, window: WindowDep) -> Page[Participant]:
    """List the invited devices and late comers, with what they sent."""
    return listings.participants(session, row, window)


@router.get("/updates", summary="List the updates")
def updates(
    session: SessionDep,
    federation: FederationDep,
    window: WindowDep,
    status: Annotated[
        Literal["accepted", "held", "refused", "quarantined"] | None, Query(description="only these")
    ] = None,
) -> Page[UpdateView]:
    """List the updates that were accepted, and those in quarantine with the reason."""
    return listings.updates(session, federation, status, window)


@router.get("/metrics", summary="List the metrics that devices reported")
def metrics(
    session: SessionDep,
    federation: FederationDep,
    window: WindowDep,
    round_number: Annotated[int | None, Query(alias="round", ge=1, le=MAX_ID, description="only this round's")] = None,
) -> Page[Metric]:
    """List what the devices measured themselves, of all rounds or of one."""
    return listings.metrics(session, federation, round_number, window)


@router.get("/devices", summary="List the devices")
def devices(
    session: SessionDep,
    federation: FederationDep,
    window: WindowDep,
    enrolment: Annotated[EnrolmentState | None, Query(description="only these")] = None,
) -> Page[Device]:
    """List the devices, their last words and where their enrolment stands."""
    return listings.devices(session, federation, enrolment, window)


@router.get("/devices/{device}", summary="Describe a device")
def device_detail(device: DeviceDep) -> Device:
    """Tell a device's last word and where its enrolment stands."""
    return Device.model_validate(device)


@router.get("/devices/{device}/history", summary="Tell what a device did")
def device_history(session: SessionDep, device: DeviceDep, window: WindowDep) -> DeviceHistory:
    """Tell a device's part in each round, what it sent and what became of that, and what it measured."""
    return history.history(session, device, window)
