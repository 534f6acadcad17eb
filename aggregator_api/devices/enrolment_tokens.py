"""Enrolment tokens: 256 random bits that let one device in, once; only their sha256 is kept."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable
from typing import cast

from sqlalchemy import CursorResult, select, update
from sqlalchemy.orm import Session

from aggregator_api.core.errors import UnauthorizedError
from aggregator_api.storage.db.models import EnrolmentTokenRow, FederationRow
from federation.protocol.signing import fingerprint

UNKNOWN = "this enrolment token is not known here; ask the operator for one"


def make(
    session: Session,
    federation: FederationRow,
    *,
    device: str | None,
    auto_approve: bool,
    lifetime_s: float,
    server_key: bytes,
    tags: Iterable[str] = (),
) -> tuple[EnrolmentTokenRow, str]:
    """Write a new token's row, and return it with the token, which is not kept.

    It names the server's public key, so that a device takes credentials from no other server.
    """
    token = f"gwe_{secrets.token_urlsafe(32)}_{fingerprint(server_key)}"
    now = time.time()
    row = EnrolmentTokenRow(
        federation_id=federation.id,
        token_sha256=_sha256(token),
        device=device,
        auto_approve=auto_approve,
        tags=sorted(set(tags)),
        created_at=now,
        expires_at=now + lifetime_s,
    )
    session.add(row)
    session.flush()
    return row, token


def find(session: Session, federation: FederationRow, token: str, device: str, now: float) -> EnrolmentTokenRow:
    """Return the row of a token that may let this device in, or has done so before.

    Raises:
        UnauthorizedError: if the token is not one of that federation's, or is not for this device, or not any more.
    """
    row = session.scalar(select(EnrolmentTokenRow).where(EnrolmentTokenRow.token_sha256 == _sha256(token)))
    if row is None or row.federation_id != federation.id:
        raise UnauthorizedError(UNKNOWN)
    if row.device not in (None, device):
        raise UnauthorizedError(f"this enrolment token is for the device {row.device!r}, not for {device!r}")
    if row.used_at is not None:
        if row.used_by != device:
            raise UnauthorizedError("this enrolment token has been used; ask the operator for another")
        return row
    if row.revoked_at is not None or row.expires_at <= now:
        raise UnauthorizedError("this enrolment token has expired or was revoked; ask the operator for another")
    if row.held_at is not None:
        raise UnauthorizedError(
            "the server was restored, and its operator has not confirmed this enrolment token yet; ask the operator"
        )
    return row


def of_federation(session: Session, federation: FederationRow, id: int) -> EnrolmentTokenRow | None:
    """Find a token of a federation by its number."""
    row = session.get(EnrolmentTokenRow, id)
    return row if row is not None and row.federation_id == federation.id else None


def use(session: Session, row: EnrolmentTokenRow, device: str, now: float) -> bool:
    """Use a token up; False if another request was faster."""
    query = update(EnrolmentTokenRow).where(EnrolmentTokenRow.id == row.id, EnrolmentTokenRow.used_at.is_(None))
    done = cast("CursorResult[tuple[()]]", session.execute(query.values(used_at=now, used_by=device)))
    return done.rowcount == 1


def revoke_for(session: Session, federation: FederationRow, device: str, now: float) -> None:
    """Revoke the unused tokens that name a device."""
    query = update(EnrolmentTokenRow).where(
        EnrolmentTokenRow.federation_id == federation.id,
        EnrolmentTokenRow.device == device,
        EnrolmentTokenRow.used_at.is_(None),
        EnrolmentTokenRow.revoked_at.is_(None),
    )
    session.execute(query.values(revoked_at=now))


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
