"""Devices that don't take part: suspended by the server, or refusing a plan that promises too little privacy.

A device is suspended if its updates are refused repeatedly. A suspended device keeps its keys and its model, but isn't
invited, no round counts on it, and its updates are refused. The operator can reinstate it.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from aggregator_api.auth.signing import verify
from aggregator_api.devices import presence
from aggregator_api.storage.db import epochs, repositories
from aggregator_api.storage.db.models import DeviceRow, FederationRow, RoundRow, UpdateRow
from federation.errors import WireError
from federation.plan import Plan, RoundSettings
from federation.protocol.messages import PlanRefusal, read
from federation.protocol.signing import Kind, to_sign, unwrap
from federation.rounds import server_round
from federation.rounds.progress import is_to_suspend, refused_updates
from federation.rounds.server_round import quorum

log = logging.getLogger(__name__)


def count_refused(
    session: Session, federation: FederationRow, device: DeviceRow, settings: RoundSettings, number: int, reason: str
) -> None:
    """Count a device's update that was refused for its content, and suspend the device at the limit."""
    if device.suspended_at is not None:
        return
    device.refused_updates = refused_updates(device.refused_updates, used=False)
    if not is_to_suspend(settings, device.refused_updates):
        return
    count = "1 update was" if device.refused_updates == 1 else f"{device.refused_updates} updates in a row were"
    suspend(session, federation, device, number, f"{count} refused, the last one because: {reason}")


def count_suspects(
    session: Session,
    federation: FederationRow,
    devices: Sequence[DeviceRow],
    settings: RoundSettings,
    number: int,
    reason: str,
) -> None:
    """Count a sum that failed against all of whom one is at fault, and suspend the one that stands out at last.

    Groups are dealt again each round, so an honest device is soon in a sum that is published, and counts from 0 again.
    """
    for device in devices:
        device.refused_updates = refused_updates(device.refused_updates, used=False)
    most = max((device.refused_updates for device in devices), default=0)
    foremost = [device for device in devices if device.refused_updates == most]
    if len(foremost) == 1 and is_to_suspend(settings, most):
        suspend(session, federation, foremost[0], number, reason)


def suspend(session: Session, federation: FederationRow, device: DeviceRow, number: int, reason: str) -> None:
    """Leave a device out of all rounds until it is let back; one that is left out already keeps its reason."""
    if device.suspended_at is not None:
        return
    device.suspended_at, device.suspension_reason = time.time(), reason[:2000]
    deferred = update(UpdateRow).where(UpdateRow.device_id == device.id, UpdateRow.status == "deferred")
    session.execute(deferred.values(status="refused", reason="the device was suspended"))
    repositories.journal(
        session,
        federation,
        "device.suspended",
        round_number=number,
        device=device.name,
        detail=device.suspension_reason,
    )


def judge_round(
    session: Session,
    federation: FederationRow,
    row: RoundRow,
    settings: RoundSettings,
    excluded: Mapping[str, str],
    *,
    is_published: bool,
    summed: Collection[str] | None = None,
) -> None:
    """Count a round's left-out updates (device to reason), and reset the count of devices whose updates it used.

    summed: whose updates these are, where a secure sum has added them. Its devices send several messages: one that has
    sent a bad one besides does not begin anew.
    """
    for name, reason in sorted(excluded.items()):
        if device := repositories.find_device(session, federation, name):
            count_refused(session, federation, device, settings, row.number, reason)
    if is_published:
        presence.forgive(session, row)
        used = select(UpdateRow.device_id).where(UpdateRow.round_id == row.id, UpdateRow.status == "accepted")
        counted = update(DeviceRow).where(DeviceRow.id.in_(used), DeviceRow.refused_updates > 0)
        if summed is not None:
            of_round = (UpdateRow.federation_id == federation.id, UpdateRow.base_round == row.number)
            bad = select(UpdateRow.device_id).where(*of_round, UpdateRow.status == "quarantined")
            counted = counted.where(DeviceRow.name.in_(summed), DeviceRow.id.not_in(bad))
        session.execute(counted.values(refused_updates=refused_updates(0, used=True)))


def reinstate(session: Session, federation: FederationRow, device: DeviceRow) -> None:
    """Let a suspended device take part again, with as many attempts as it had at first."""
    if device.suspended_at is None:
        return
    device.suspended_at, device.suspension_reason, device.refused_updates = None, "", 0
    repositories.journal(session, federation, "device.reinstated", device=device.name, detail="by the operator")


def needed_devices(session: Session, federation: FederationRow, plan: Plan) -> int:
    """Return how many devices must be online for a round to begin, without suspended ones."""
    needed, least = server_round.needed_devices(plan), quorum(plan)
    return needed if needed == least else max(least, needed - count_suspended(session, federation))


def count_suspended(session: Session, federation: FederationRow) -> int:
    """Count the devices that are suspended and were not revoked."""
    query = select(func.count()).select_from(DeviceRow).where(DeviceRow.federation_id == federation.id)
    return session.scalar(query.where(DeviceRow.suspended_at.is_not(None), DeviceRow.enrolment != "revoked")) or 0


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
        raise WireError("it is about an earlier federation's plan, or from before the server was restored")
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
            raise WireError("it isn't signed with the device's enrolled key")
    return envelope.body


def has_key(row: DeviceRow) -> bool:
    """Whether a device has enrolled with a key, so that its refusals of plans and models are signed."""
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
