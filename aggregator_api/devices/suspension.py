"""Devices that are left out of rounds, because what they send is refused again and again.

A suspended device keeps its keys and its model; it is not invited, no round counts on it, and its updates are refused.
Whoever operates the server lets it back.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from aggregator_api.devices import silence
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow, FederationRow, RoundRow, UpdateRow
from federation.plan import Plan, RoundSettings
from federation.rounds import server_round
from federation.rounds.progress import is_to_suspend, refused_updates
from federation.rounds.server_round import quorum


def count_refused(
    session: Session, federation: FederationRow, device: DeviceRow, settings: RoundSettings, number: int, reason: str
) -> None:
    """Count an update of a device that was refused for what it holds, and suspend the device if it is one too many."""
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
    """Count what a round has left out (device to reason), and begin anew with those whose updates it has used.

    summed: whose updates these are, where a secure sum has added them. Its devices send several messages: one that has
    sent a bad one besides does not begin anew.
    """
    for name, reason in sorted(excluded.items()):
        if device := repositories.find_device(session, federation, name):
            count_refused(session, federation, device, settings, row.number, reason)
    if is_published:
        silence.forgive(session, row)
        used = select(UpdateRow.device_id).where(UpdateRow.round_id == row.id, UpdateRow.status == "accepted")
        counted = update(DeviceRow).where(DeviceRow.id.in_(used), DeviceRow.refused_updates > 0)
        if summed is not None:
            here = (UpdateRow.federation_id == federation.id, UpdateRow.base_round == row.number)
            bad = select(UpdateRow.device_id).where(*here, UpdateRow.status == "quarantined")
            counted = counted.where(DeviceRow.name.in_(summed), DeviceRow.id.not_in(bad))
        session.execute(counted.values(refused_updates=refused_updates(0, used=True)))


def reinstate(session: Session, federation: FederationRow, device: DeviceRow) -> None:
    """Let a suspended device take part again, with as many attempts as it had at first."""
    if device.suspended_at is None:
        return
    device.suspended_at, device.suspension_reason, device.refused_updates = None, "", 0
    repositories.journal(session, federation, "device.reinstated", device=device.name, detail="by the operator")


def needed_devices(session: Session, federation: FederationRow, plan: Plan) -> int:
    """Return how many devices must be online for a round to begin; nobody waits for suspended ones."""
    needed, least = server_round.needed_devices(plan), quorum(plan)
    return needed if needed == least else max(least, needed - count_suspended(session, federation))


def count_suspended(session: Session, federation: FederationRow) -> int:
    """Count the devices that are suspended and were not revoked."""
    here = select(func.count()).select_from(DeviceRow).where(DeviceRow.federation_id == federation.id)
    return session.scalar(here.where(DeviceRow.suspended_at.is_not(None), DeviceRow.enrolment != "revoked")) or 0
