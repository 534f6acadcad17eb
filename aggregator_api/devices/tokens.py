"""Short-lived keys for devices whose only secret is their private key, such as browsers.

A token is an API key of the device that ends after some minutes: what opens with the one opens with the other, and
revoking the device voids both. It is made for a signature, so a signed request must not make two: the public half of
the token follows from what was signed, and is in use until the request is too old to be believed.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from aggregator_api.auth import api_keys
from aggregator_api.auth.signing import verify
from aggregator_api.core.errors import (
    ConflictError,
    ForbiddenError,
    TooManyError,
    UnauthorizedError,
    UnprocessableError,
)
from aggregator_api.devices.enrolment import CLOCK_S, DeviceToken, TokenRequest
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import CredentialRow, DeviceRow, FederationRow
from federation.protocol.signing import Kind, to_sign

LIFETIME_S = 900.0
"""More than twice `CLOCK_S`: a request that is sent again once its token's row is gone is too old."""
MAX_TOKENS = 32
"""Tokens of one device at a time."""


class TokenService:
    """Gives approved devices tokens."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock

    def make(self, request: TokenRequest) -> DeviceToken:
        """Give a device a token for its signature.

        Raises:
            UnauthorizedError: if the signature is not the device's.
            UnprocessableError: if `issued_at_ms` is too far from now.
            ConflictError: if the request was sent before.
            ForbiddenError: if the device is not approved.
            TooManyError: if it has asked for too many.
        """
        now = self._clock()
        message = to_sign(Kind.TOKEN, request.federation, request.device, str(request.issued_at_ms).encode())
        with self._database.read() as session:  # a wrong signature must not make writers wait
            _find_signer(session, request, message)
        try:
            with self._database.write() as session:
                federation, row = _find_signer(session, request, message)
                _check(session, row, request.issued_at_ms / 1000, now)
                prefix = hashlib.sha256(message).hexdigest()[: api_keys.PREFIX_DIGITS]
                ends = now + LIFETIME_S
                _, token = api_keys.make(
                    session, row.name, ["device"], federation=federation, device=row, expires_at=ends, prefix=prefix
                )
        except IntegrityError as error:
            raise ConflictError("issued_at_ms: this request was already sent; sign a new one") from error
        return DeviceToken(token=token, expires_in_s=int(LIFETIME_S))


def _find_signer(session: Session, request: TokenRequest, message: bytes) -> tuple[FederationRow, DeviceRow]:
    federation = repositories.find_federation(session, request.federation)
    row = repositories.find_device(session, federation, request.device) if federation else None
    if federation is None or row is None or not _signed(row, request.signature, message):
        raise UnauthorizedError(f"the signature isn't from a device {request.device!r} of {request.federation!r}")
    return federation, row


def _signed(row: DeviceRow, signature: str, message: bytes) -> bool:
    return verify(base64.b64decode(row.public_key or ""), base64.b64decode(signature), message)


def _check(session: Session, row: DeviceRow, issued_at: float, now: float) -> None:
    off = issued_at - now
    if abs(off) > CLOCK_S:
        raise UnprocessableError(
            f"issued_at_ms: {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} this server's clock, at most "
            f"{CLOCK_S} are allowed; set the device's clock"
        )
    if row.enrolment != "approved":
        what = "was revoked" if row.enrolment == "revoked" else "awaits the operator's approval"
        raise ForbiddenError(f"the device {row.name!r} {what}")
    theirs = (CredentialRow.device_id == row.id, CredentialRow.expires_at.is_not(None))
    session.execute(delete(CredentialRow).where(*theirs, CredentialRow.expires_at < now))
    if (session.scalar(select(func.count()).where(*theirs)) or 0) >= MAX_TOKENS:
        raise TooManyError(f"the device {row.name!r} has {MAX_TOKENS} tokens; use one of them", wait_s=60.0)
