"""What a collecting round need not wait for any longer: its deadline, and devices that are gone."""

from __future__ import annotations

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from aggregator_api.db.models import DeviceRow, FederationRow, ParticipationRow, RoundRow
from federation.rounds.server_round import RoundPhase


def deadlines_passed(session: Session, now: float) -> list[str]:
    """Return the federations whose open round is over its deadline and has not been told."""
    query = (
        select(FederationRow.name)
        .join(RoundRow, RoundRow.federation_id == FederationRow.id)
        .where(
            RoundRow.phase == RoundPhase.COLLECTING, RoundRow.deadline_passed.is_(False), RoundRow.deadline_at <= now
        )
    )
    return list(session.scalars(query))


def devices_gone(session: Session, now: float, lost_after_s: float) -> list[tuple[str, str]]:
    """Return (federation, device) of those awaited that have been offline for `lost_after_s`.

    Only where no deadline ends the wait: a deadline says for how long the operator wants to wait. One that was heard
    at a time to come was heard before the clock was set back; the caller has listened for long enough since.
    """
    query = (
        select(FederationRow.name, DeviceRow.name)
        .join(DeviceRow, DeviceRow.federation_id == FederationRow.id)
        .join(ParticipationRow, ParticipationRow.device_id == DeviceRow.id)
        .join(RoundRow, RoundRow.id == ParticipationRow.round_id)
        .where(
            RoundRow.phase == RoundPhase.COLLECTING,
            RoundRow.deadline_at.is_(None),
            ParticipationRow.outcome == "waiting",
            DeviceRow.state == "offline",
            or_(DeviceRow.seen_at <= now - lost_after_s, DeviceRow.seen_at > now + lost_after_s),
        )
    )
    return [(federation, device) for federation, device in session.execute(query)]
