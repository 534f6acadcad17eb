"""Enrolment: a device presents a token and a key, an operator approves it, and it claims credentials.

docs/rest.md describes the protocol. Rows are written before the broker's account; after a failure in between, the
device asks again.
"""

from __future__ import annotations

import base64
import secrets
import time
from typing import Annotated, Literal, NamedTuple, cast

from pydantic import BaseModel, Field
from sqlalchemy import CursorResult, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from aggregator_api.auth import api_keys
from aggregator_api.auth.signing import Identity, verify
from aggregator_api.core.errors import (
    BrokerError,
    ConflictError,
    ForbiddenError,
    UnauthorizedError,
    UnavailableError,
    UnprocessableError,
)
from aggregator_api.devices import enrolment_tokens, service
from aggregator_api.devices.service import BrokerAccounts, username
from aggregator_api.devices.vouching import forget_voucher
from aggregator_api.storage.db import audit, repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import DeviceRow, EnrolmentTokenRow, FederationRow
from federation.plan import Name, Strict, Text
from federation.privacy.promises import PrivacyPromises, promises_of
from federation.protocol.signing import Kind, to_sign

PublicKey = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$", description="base64 of the raw ed25519 key, 32 bytes")
]
Signature = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9+/]{86}==$", description="base64 of the ed25519 signature, 64 bytes")
]

Moment = Annotated[int, Field(ge=0, le=2**53)]


class Enrol(Strict):
    """A device that shows a token, and proves that it holds the private half of its key."""

    token: Text = Field(min_length=1, max_length=128)
    federation: Name
    device: Name
    public_key: PublicKey
    signature: Signature = Field(description=r'over UTF-8 "gaitway-signed/1\nenrol\n{federation}\n{device}\n{token}"')


class _SignedRequest(Strict):
    """A device that has enrolled, and asks for something by its name and its key pair."""

    federation: Name
    device: Name


class Claim(_SignedRequest):
    """A device that asks for new credentials with the key that it enrolled with."""

    issued_at: Moment = Field(description="Unix seconds; within 300 s, and greater each time")
    signature: Signature = Field(
        description=r'over UTF-8 "gaitway-signed/1\nclaim\n{federation}\n{device}\n{issued_at}"'
    )


class TokenRequest(_SignedRequest):
    """A device that asks for a key for some minutes, with the key pair that it enrolled with."""

    issued_at_ms: Moment = Field(description="Unix milliseconds; within 300 s, and never the same twice")
    signature: Signature = Field(
        description=r'over UTF-8 "gaitway-signed/1\ntoken\n{federation}\n{device}\n{issued_at_ms}"'
    )


class DeviceToken(BaseModel):
    """A device's key for some minutes."""

    token: str = Field(description="for `Authorization: Bearer …`, wherever the device's API key opens")
    expires_in_s: int


class BrokerAddress(BaseModel):
    """Where devices reach the broker: the setting `public_broker_url`, or a broker on loopback."""

    host: str
    port: int
    tls: bool


class BrokerLogin(BaseModel):
    """A device's account at the broker, and where that is."""

    username: str
    password: str
    address: BrokerAddress | None = Field(default=None, description="none: the server was not told what devices reach")


class Credentials(BaseModel):
    """What a device needs from now on; the ones before are void."""

    api_key: str
    broker: BrokerLogin
    server_key: PublicKey = Field(description="base64 of the server's raw ed25519 public key")


class Enrolment(BaseModel):
    """Where a device's enrolment stands."""

    state: Literal["pending", "approved"]
    device: str
    promises: PrivacyPromises = Field(description="what the plan promises now; the device requires it from then on")
    credentials: Credentials | None = Field(default=None, description="once, in the answer that makes them")


CLOCK_S = 300
"""How far a device's clock may be off."""


class EnrolmentStatus(NamedTuple):
    """A device's state, what its federation's plan promises it, and its new API key if it got one."""

    state: str
    promises: PrivacyPromises
    api_key: str | None = None


class EnrolmentService:
    """Answers devices that come in."""

    def __init__(
        self,
        database: Database,
        accounts: BrokerAccounts,
        identity: Identity,
        broker: tuple[str, int, bool] | None = None,
    ) -> None:
        self._address = BrokerAddress(host=broker[0], port=broker[1], tls=broker[2]) if broker else None
        self._database = database
        self._accounts = accounts
        self._identity = identity

    def enrol(self, request: Enrol) -> Enrolment:
        """Take a device's key for a token; sent again, it says how the enrolment stands.

        Raises:
            UnauthorizedError: if the token lets this device not in, or the signature is not its key's.
            ConflictError: if a device of that name is enrolled with another key.
            ForbiddenError: if the device was revoked and the token does not name it.
            UnavailableError: if the broker cannot make its account; the device then claims its credentials later.
        """
        message = to_sign(Kind.ENROL, request.federation, request.device, request.token.encode())
        if not _signed(request.public_key, request.signature, message):
            raise UnauthorizedError("the signature over the federation, device and token doesn't match this public key")
        with self._database.read() as session:  # a wrong token must not make writers wait
            _find_token(session, request, time.time())
        try:
            with self._database.write() as session:
                status = _enrol_device(session, request, time.time())
        except IntegrityError as error:
            raise ConflictError(f"a device {request.device!r} is being enrolled by another request") from error
        return self._answer(request.federation, request.device, status)

    def claim(self, request: Claim) -> Enrolment:
        """Give an approved device new credentials; those before are void.

        Raises:
            UnauthorizedError: if the signature is not the device's.
            UnprocessableError: if `issued_at` is too far from now.
            ConflictError: if `issued_at` was used before.
            ForbiddenError: if the device was revoked.
            UnavailableError: if the broker cannot make its account.
        """
        message = to_sign(Kind.CLAIM, request.federation, request.device, str(request.issued_at).encode())
        with self._database.read() as session:  # a wrong signature must not make writers wait
            _find_signer(session, request, message)
        with self._database.write() as session:
            federation, row = _find_signer(session, request, message)
            _check_time(session, row, request.issued_at)
            if row.enrolment == "revoked":
                raise ForbiddenError(f"the device {row.name!r} was revoked; it needs a token made for it to return")
            status = _enrolment_status(session, federation, row)
        return self._answer(request.federation, request.device, status)

    def _answer(self, federation: str, device: str, status: EnrolmentStatus) -> Enrolment:
        if status.api_key is None:
            return Enrolment.model_validate({"state": status.state, "device": device, "promises": status.promises})
        name, password = username(federation, device), secrets.token_urlsafe(32)
        login = BrokerLogin(username=name, password=password, address=self._address)
        try:
            self._accounts.grant(federation, device, login.username, login.password)
        except BrokerError as error:
            raise UnavailableError(
                f"the broker could not make the device's account: {error}; claim again later"
            ) from error
        server_key = base64.b64encode(self._identity.public_key).decode()
        given = Credentials(api_key=status.api_key, broker=login, server_key=server_key)
        return Enrolment(state="approved", device=device, promises=status.promises, credentials=given)


def approved_usernames(session: Session) -> set[str]:
    """Return the names of the broker accounts of all approved devices."""
    query = select(FederationRow.name, DeviceRow.name).join(DeviceRow, DeviceRow.federation_id == FederationRow.id)
    return {username(*names) for names in session.execute(query.where(DeviceRow.enrolment == "approved"))}


def _find_token(session: Session, request: Enrol, now: float) -> tuple[FederationRow, EnrolmentTokenRow]:
    federation = repositories.find_federation(session, request.federation)
    if federation is None:
        raise UnauthorizedError(enrolment_tokens.UNKNOWN)
    return federation, enrolment_tokens.find(session, federation, request.token, request.device, now)


def _find_signer(session: Session, request: Claim, message: bytes) -> tuple[FederationRow, DeviceRow]:
    federation = repositories.find_federation(session, request.federation)
    row = repositories.find_device(session, federation, request.device) if federation else None
    if federation is None or row is None or not _signed(row.public_key or "", request.signature, message):
        raise UnauthorizedError(f"the signature isn't from a device {request.device!r} of {request.federation!r}")
    return federation, row


def _enrol_device(session: Session, request: Enrol, now: float) -> EnrolmentStatus:
    federation, token = _find_token(session, request, now)
    row = repositories.find_device(session, federation, request.device)
    if token.used_at is not None or not enrolment_tokens.use(session, token, request.device, now):
        if row is None or row.public_key != request.public_key or row.enrolment == "revoked":
            raise UnauthorizedError("this enrolment token has been used; ask the operator for another")
        return EnrolmentStatus(row.enrolment, _promises(federation))  # the answer was lost: it may claim
    if row is None:
        row = _new_device(session, federation, request.device, now)
    else:
        _check_name_is_free(row, token, request.public_key)
        api_keys.revoke_of_device(session, row)
    approved = token.auto_approve or (row.enrolment == "approved" and row.public_key == request.public_key)
    if token.tags:
        service.put(session, row, token.tags)
    if row.public_key != request.public_key:
        forget_voucher(row)
    row.public_key, row.enrolment = request.public_key, "approved" if approved else "pending"
    repositories.journal(session, federation, f"device.{row.enrolment}", device=row.name, detail=f"token {token.id}")
    audit.mention(f"token {token.id}: {row.enrolment}")
    return _enrolment_status(session, federation, row)


def _check_name_is_free(row: DeviceRow, token: EnrolmentTokenRow, public_key: str) -> None:
    if token.device == row.name or (row.enrolment == "open" and row.public_key is None):
        return
    if row.enrolment == "revoked":
        raise ForbiddenError(f"the device {row.name!r} was revoked; it needs a token made for it to return")
    if row.public_key != public_key:
        raise ConflictError(
            f"a device {row.name!r} is enrolled with another key; choose another name, or use a token made for it"
        )


def _new_device(session: Session, federation: FederationRow, name: str, now: float) -> DeviceRow:
    row = DeviceRow(
        federation_id=federation.id, name=name, state="offline", examples=0, detail="", enrolled_at=now, seen_at=now
    )
    session.add(row)
    session.flush()
    return row


def _check_time(session: Session, row: DeviceRow, issued_at: int) -> None:
    off = issued_at - time.time()
    if abs(off) > CLOCK_S:
        raise UnprocessableError(
            f"issued_at: {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} this server's clock, at most {CLOCK_S} "
            "are allowed; set the device's clock"
        )
    # a claim of a time to come was made before this server's clock was set back, and must not lock its device out
    to_come = DeviceRow.claimed_at > time.time() + CLOCK_S
    fresh = or_(DeviceRow.claimed_at.is_(None), DeviceRow.claimed_at < issued_at, to_come)
    query = update(DeviceRow).where(DeviceRow.id == row.id, fresh).values(claimed_at=issued_at)
    if cast("CursorResult[tuple[()]]", session.execute(query)).rowcount != 1:
        raise ConflictError(f"issued_at: {issued_at} is not greater than that of the last claim; sign a new one")


def _enrolment_status(session: Session, federation: FederationRow, row: DeviceRow) -> EnrolmentStatus:
    """Return a device's state, and void its old API key for a new one if it is approved."""
    promises = _promises(federation)
    if row.enrolment != "approved":
        return EnrolmentStatus(row.enrolment, promises)
    api_keys.revoke_of_device(session, row)
    _, api_key = api_keys.make(session, row.name, ["device"], federation=federation, device=row)
    return EnrolmentStatus(row.enrolment, promises, api_key)


def _promises(federation: FederationRow) -> PrivacyPromises:
    return promises_of(federation.parsed_plan)


def _signed(public_key: str, signature: str, message: bytes) -> bool:
    return verify(base64.b64decode(public_key), base64.b64decode(signature), message)
