"""Devices that take no part, because the plan promises less privacy than they require: signed by each, and counted."""

from __future__ import annotations

import base64
import logging
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.auth.server_identity import verify
from aggregator_api.storage.db import epochs, repositories
from aggregator_api.storage.db.models import DeviceRow, FederationRow
from federation.errors import WireError
from federation.protocol.messages import PlanRefusal, read
from federation.protocol.signing import Kind, to_sign, unwrap

log = logging.getLogger(__name__)


class RefusalCount(NamedTuple):
    """A reason why devices refuse the plan, and how many do."""

    reason: str
    devices: int


def note_refusal(session: Session, federation: FederationRow, row: DeviceRow, signed: str) -> bool:
    """Keep what a device's status says of the plan; return whether that is news. A forged refusal changes nothing."""
    try:
        reason = _reason(session, federation, row, signed) if signed else ""
    except WireError as error:
        log.warning("refusal of the plan ignored: %s", error, extra={"federation": federation.name, "device": row.name})
        return False
    if reason == (row.plan_refusal or ""):  # None: of a row that is new
        return False
    row.plan_refusal = reason
    kind, detail = ("device.refuses", reason) if reason else ("device.accepts", "")
    repositories.journal(session, federation, kind, device=row.name, detail=detail)
    return True


def _reason(session: Session, federation: FederationRow, row: DeviceRow, signed: str) -> str:
    """Return why a device refuses the plan.

    Raises:
        WireError: if these aren't the device's words about this federation.
    """
    refusal = read(PlanRefusal, verified_body(federation, row, Kind.REFUSAL, signed))
    if (refusal.instance, refusal.epoch) != (federation.instance, epochs.current(session).epoch):
        raise WireError("it is about the plan of an earlier federation, or from before the server was restored")
    return refusal.reason or "no reason was given"


def verified_body(federation: FederationRow, row: DeviceRow, kind: Kind, signed: str) -> bytes:
    """Return what a device has signed; one without a key signs nothing.

    Raises:
        WireError: if it isn't signed by the device's key.
    """
    envelope = unwrap(signed.encode())
    if has_key(row):
        text = to_sign(kind, federation.name, row.name, envelope.body)
        key = base64.b64decode(row.public_key or "")
        if envelope.signature is None or not verify(key, envelope.signature, text):
            raise WireError("it isn't signed by the key that the device has enrolled with")
    return envelope.body


def has_key(row: DeviceRow) -> bool:
    """Whether a device has enrolled with a key, so that what it says of a plan or a model is signed."""
    return row.enrolment == "approved" and row.public_key is not None


def counts(session: Session, federation: FederationRow) -> list[RefusalCount]:
    """Return why devices refuse the plan, the most frequent reason first."""
    devices = func.count()
    query = select(DeviceRow.plan_refusal, devices).where(
        DeviceRow.federation_id == federation.id, DeviceRow.plan_refusal != "", DeviceRow.enrolment != "revoked"
    )
    grouped = query.group_by(DeviceRow.plan_refusal).order_by(devices.desc(), DeviceRow.plan_refusal)
    return [RefusalCount(reason, number) for reason, number in session.execute(grouped)]


def describe_refusals(found: list[RefusalCount]) -> str:
    """Say how many devices refuse the plan, and why."""
    total = sum(refusal.devices for refusal in found)
    reasons = "; ".join(f"{refusal.devices:,} because {refusal.reason}" for refusal in found)
    return f"{total:,} device{' refuses' if total == 1 else 's refuse'} the plan: {reasons}"
