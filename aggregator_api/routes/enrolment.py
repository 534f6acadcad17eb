"""How devices come in: tokens for the operator to give away, enrolment and claims for devices, approval, revocation."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Response

from aggregator_api import approval, enrolment, listings, tokens
from aggregator_api.credential_views import Claim, Enrol, Enrolment, MadeToken, NewToken, Token
from aggregator_api.errors import NotFoundError
from aggregator_api.problems import responses
from aggregator_api.routes.dependencies import MAX_ID, FederationDep, RuntimeDep, SessionDep, WindowDep
from aggregator_api.service import named
from aggregator_api.tables import EnrolmentTokenRow
from aggregator_api.views import Device, Page

router = APIRouter(prefix="/v1", tags=["enrolment"])

TOKENS = "/federations/{name}/enrolment-tokens"
DEVICE = "/federations/{name}/devices/{device}"
TokenId = Annotated[int, Path(ge=1, le=MAX_ID)]


@router.post("/enrol", status_code=201, summary="Enrol a device", responses=responses(401, 403, 409, 413, 422, 503))
def enrol(runtime: RuntimeDep, said: Enrol, response: Response) -> Enrolment:
    """Show a token and a public key; with `auto_approve` the answer holds the credentials."""
    _shown_once(response)
    return enrolment.enrol(runtime, said)


@router.post(
    "/enrol/claim",
    summary="Claim a device's credentials",
    responses={202: {"model": Enrolment, "description": "not approved yet"}, **responses(401, 403, 409, 413, 422, 503)},
)
def claim(runtime: RuntimeDep, said: Claim, response: Response) -> Enrolment:
    """Get new credentials with the key that the device enrolled with; the ones before are void."""
    _shown_once(response)
    answer = enrolment.claim(runtime, said)
    if answer.credentials is None:
        response.status_code = 202
    return answer


@router.get(TOKENS, summary="List the enrolment tokens", responses=responses(404, 422))
def list_tokens(session: SessionDep, federation: FederationDep, window: WindowDep) -> Page[Token]:
    """List the tokens without their secrets, and who used them."""
    return listings.tokens(session, federation, window)


@router.post(TOKENS, status_code=201, summary="Make an enrolment token", responses=responses(404, 413, 422))
def make_token(runtime: RuntimeDep, name: str, new: NewToken, response: Response) -> MadeToken:
    """Make a token that lets one device in, once; the answer is the only place where it is shown."""
    with runtime.database.write() as session:
        row, token = tokens.make(
            session, named(session, name), device=new.device, auto_approve=new.auto_approve, lifetime_s=new.lifetime_s
        )
        shown = MadeToken(**Token.model_validate(row).model_dump(), token=token)
    _shown_once(response)
    return shown


@router.post(TOKENS + "/{token}/revoke", summary="Revoke an enrolment token", responses=responses(404, 422))
def revoke_token(runtime: RuntimeDep, name: str, token: TokenId) -> Token:
    """Let a token that was not used let nobody in."""
    with runtime.database.write() as session:
        federation, row = named(session, name), session.get(EnrolmentTokenRow, token)
        if row is None or row.federation_id != federation.id:
            raise NotFoundError(f"federation {name!r} has no enrolment token {token}")
        row.revoked_at = row.revoked_at or time.time()
        return Token.model_validate(row)


@router.post(DEVICE + "/approve", summary="Approve a device", responses=responses(404, 409, 422))
def approve(runtime: RuntimeDep, name: str, device: str) -> Device:
    """Let a device that has enrolled claim its credentials."""
    approval.approve(runtime, name, device)
    return _device(runtime, name, device)


@router.post(DEVICE + "/revoke", summary="Revoke a device", responses=responses(404, 422, 503))
def revoke(runtime: RuntimeDep, name: str, device: str) -> Device:
    """Void its keys and its account at the broker, and wait for it no longer; what was accepted of it stays."""
    approval.revoke(runtime, name, device)
    return _device(runtime, name, device)


def _device(runtime: RuntimeDep, name: str, device: str) -> Device:
    with runtime.database.read() as session:
        return Device.model_validate(approval.find(session, name, device)[1])


def _shown_once(response: Response) -> None:
    response.headers["Cache-Control"] = "no-store"
