"""How devices come in: tokens for the operator to give away, enrolment and claims for devices, approval, revocation."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from aggregator_api.auth.scopes import anybody, requires
from aggregator_api.devices import enrolment_tokens
from aggregator_api.devices.enrolment import Claim, DeviceToken, Enrol, Enrolment, TokenRequest
from aggregator_api.devices.enrolment_tokens import NewToken
from aggregator_api.devices.service import DeviceTags, find
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.dependencies import (
    DatabaseDep,
    DeletionServiceDep,
    DeviceServiceDep,
    EnrolmentServiceDep,
    IdentityDep,
    PageDep,
    PlaceDep,
    TokenId,
    TokenServiceDep,
)
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.credentials import MadeToken, Token
from aggregator_api.http.queries.resources import Deleted, Device, Page
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.database import Database

router = APIRouter(prefix="/v1", tags=["enrolment"])

TOKENS = "/federations/{name}/enrolment-tokens"
DEVICE = "/federations/{name}/devices/{device}"


@router.post("/enrol", status_code=201, summary="Enrol a device", responses=responses(401, 403, 409, 413, 422, 503))
@anybody()
def enrol(enrolment: EnrolmentServiceDep, request: Enrol, response: Response) -> Enrolment:
    """Show a token and a public key; with `auto_approve` the answer holds the credentials."""
    _shown_once(response)
    return enrolment.enrol(request)


@router.post(
    "/enrol/claim",
    summary="Claim a device's credentials",
    responses={202: {"model": Enrolment, "description": "not approved yet"}, **responses(401, 403, 409, 413, 422, 503)},
)
@anybody()
def claim(enrolment: EnrolmentServiceDep, request: Claim, response: Response) -> Enrolment:
    """Get new credentials with the key that the device enrolled with; the ones before are void."""
    _shown_once(response)
    answer = enrolment.claim(request)
    if answer.credentials is None:
        response.status_code = 202
    return answer


@router.post(
    "/enrol/token",
    status_code=201,
    summary="Get a device's key for some minutes",
    responses=responses(401, 403, 409, 413, 422),
)
@anybody()
def device_token(tokens: TokenServiceDep, request: TokenRequest, response: Response) -> DeviceToken:
    """Get a key that ends by itself; those before go on, and a request that was sent before gets none."""
    _shown_once(response)
    return tokens.make(request)


@router.get(TOKENS, summary="List the enrolment tokens", responses=responses(404, 422))
@requires("operator", "read")
def list_tokens(place: PlaceDep, page: PageDep) -> Page[Token]:
    """List the tokens without their secrets, and who used them."""
    with place.read() as (session, federation):
        return listings.tokens(session, federation, page)


@router.post(TOKENS, status_code=201, summary="Make an enrolment token", responses=responses(404, 413, 422))
@requires("operator")
def make_token(identity: IdentityDep, place: PlaceDep, new: NewToken, response: Response) -> MadeToken:
    """Make a token that enrols one device, once; the answer is the only place where it is shown."""
    with place.write() as (session, federation):
        row, token = enrolment_tokens.make(session, federation, new, identity.public_key)
        audit.mention(f"token {row.id}")
        shown = MadeToken.of(row, token)
    _shown_once(response)
    return shown


@router.post(TOKENS + "/{token}/revoke", summary="Revoke an enrolment token", responses=responses(404, 422))
@requires("operator")
def revoke_token(place: PlaceDep, token: TokenId) -> Token:
    """Let a token that was not used let nobody in."""
    with place.write() as (session, federation):
        row = enrolment_tokens.revoke(session, federation, token)
        audit.mention(f"token {token}")
        return Token.model_validate(row)


@router.post(
    TOKENS + "/{token}/confirm", summary="Confirm an enrolment token after a restore", responses=responses(404, 422)
)
@requires("operator")
def confirm_token(place: PlaceDep, token: TokenId) -> Token:
    """Let a token that a restore without the ledger holds let a device in, as before."""
    with place.write() as (session, federation):
        row = enrolment_tokens.confirm(session, federation, token)
        audit.mention(f"token {token}")
        return Token.model_validate(row)


@router.post(DEVICE + "/approve", summary="Approve a device", responses=responses(404, 409, 422))
@requires("operator")
def approve(devices: DeviceServiceDep, database: DatabaseDep, name: str, device: str) -> Device:
    """Let a device that has enrolled claim its credentials."""
    devices.approve(name, device)
    return _device(database, name, device)


@router.post(DEVICE + "/revoke", summary="Revoke a device", responses=responses(404, 422, 503))
@requires("operator")
def revoke(devices: DeviceServiceDep, database: DatabaseDep, name: str, device: str) -> Device:
    """Void its keys and its account at the broker, and wait for it no longer; what was accepted of it stays."""
    devices.revoke(name, device)
    return _device(database, name, device)


@router.post(DEVICE + "/reinstate", summary="Lift a device's suspension", responses=responses(404, 422))
@requires("operator")
def reinstate(devices: DeviceServiceDep, database: DatabaseDep, name: str, device: str) -> Device:
    """Let a device take part again that was suspended because its updates were refused again and again."""
    devices.reinstate(name, device)
    return _device(database, name, device)


@router.post(DEVICE + "/withdraw", summary="Take a device's sums out", responses=responses(404, 409, 422))
@requires("operator")
def withdraw(devices: DeviceServiceDep, database: DatabaseDep, name: str, device: str) -> Device:
    """Publish the next version of a continuous federation as if the device had never sent its sums."""
    devices.withdraw(name, device)
    return _device(database, name, device)


@router.put(DEVICE + "/tags", summary="Set a device's groups", responses=responses(404, 413, 422))
@requires("operator")
def set_tags(devices: DeviceServiceDep, database: DatabaseDep, name: str, device: str, wanted: DeviceTags) -> Device:
    """Put a device into these groups and no others; a plan's `rounds.cohort_tags` draws cohorts from groups."""
    devices.set_tags(name, device, wanted.tags)
    return _device(database, name, device)


@router.delete(DEVICE, summary="Delete a device", responses=responses(404, 409, 422, 503))
@requires("operator")
def delete(
    deletion: DeletionServiceDep,
    name: str,
    device: str,
    dry_run: Annotated[bool, Query(description="only tell what would be deleted")] = False,
) -> Deleted:
    """Delete it with all that it said, sent and measured, its keys and its broker account; the audit stays."""
    return Deleted(dry_run=dry_run, rows=deletion.delete_device(name, device, dry_run=dry_run))


def _device(database: Database, name: str, device: str) -> Device:
    with database.read() as session:
        return Device.model_validate(find(session, name, device)[1])


def _shown_once(response: Response) -> None:
    response.headers["Cache-Control"] = "no-store"
