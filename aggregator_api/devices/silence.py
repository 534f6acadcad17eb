"""Devices that are left out of rounds for a while, because they were invited and did not answer.

A round misses them at its deadline. Without one, it misses those that it gives up (`rounds.deadlines.devices_gone`).
After MAX_MISSED rounds in a row no round draws a device for FIRST_REST_S, after each further one for twice as long, up
to MAX_REST_S. Then it is drawn again by itself, and an update that counts resets the count. The device keeps its
keys, its model and its releases.
"""

from __future__ import annotations

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow, FederationRow, ParticipationRow, RoundRow
from federation.rounds.server_round import ClientStatus

MAX_MISSED = 3
FIRST_REST_S, MAX_REST_S = 120.0, 3600.0


def judge_deadline(session: Session, federation: FederationRow, row: RoundRow, now: float) -> bool:
    """Count a round whose deadline has passed against those who are still awaited; return whether one is left out."""
    awaited = select(ParticipationRow.device_id).where(
        ParticipationRow.round_id == row.id,
        ParticipationRow.invited.is_(True),
        ParticipationRow.outcome == ClientStatus.WAITING,
    )
    devices = session.scalars(select(DeviceRow).where(DeviceRow.id.in_(awaited)).order_by(DeviceRow.name))
    left_out = [count_missed(session, federation, row, device, now) for device in devices]
    return any(left_out)


def count_missed(session: Session, federation: FederationRow, row: RoundRow, device: DeviceRow, now: float) -> bool:
    """Count a round against a device that did not answer; return whether it is left out now."""
    device.missed_rounds += 1
    if device.missed_rounds < MAX_MISSED:
        return False
    rest_s = min(MAX_REST_S, FIRST_REST_S * 2.0 ** min(device.missed_rounds - MAX_MISSED, 16))
    device.left_out_until = now + rest_s
    detail = f"{device.missed_rounds} rounds in a row have not heard of it; it is drawn again in {rest_s:.0f} s"
    repositories.journal(
        session, federation, "device.left_out", round_number=row.number, device=device.name, detail=detail
    )
    return True


def forgive(session: Session, row: RoundRow) -> None:
    """Begin the count anew of those whose updates a round has."""
    heard = select(ParticipationRow.device_id).where(
        ParticipationRow.round_id == row.id, ParticipationRow.outcome == ClientStatus.RECEIVED
    )
    counted = or_(DeviceRow.missed_rounds > 0, DeviceRow.left_out_until.is_not(None))
    silent = update(DeviceRow).where(DeviceRow.id.in_(heard), counted)
    session.execute(silent.values(missed_rounds=0, left_out_until=None))


def count_left_out(session: Session, federation: FederationRow, now: float) -> int:
    """Count the devices that are online and left out now."""
    online = (DeviceRow.federation_id == federation.id, DeviceRow.state.not_in(repositories.OFFLINE_STATES))
    return (
        session.scalar(select(func.count()).select_from(DeviceRow).where(*online, DeviceRow.left_out_until > now)) or 0
    )


def has_returning(session: Session, federation: FederationRow, now: float) -> bool:
    """Whether a device may be drawn again that was left out: no message of its own says so."""
    returning = (DeviceRow.federation_id == federation.id, DeviceRow.left_out_until <= now)
    return session.scalar(select(DeviceRow.id).where(*returning).limit(1)) is not None
