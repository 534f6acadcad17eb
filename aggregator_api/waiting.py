"""What a collecting round need not wait for any longer: its deadline, and devices that are gone."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.tables import DeviceRow, FederationRow, ParticipationRow, RoundRow
from federation.server_round import RoundPhase


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


def devices_gone(session: Session, before: float) -> list[tuple[str, str]]:
    """Return (federation, device) of those awaited that have been offline since `before`.

    Only where no deadline ends the wait: a deadline says for how long the operator wants to wait.
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
            DeviceRow.seen_at <= before,
        )
    )
    return [(federation, device) for federation, device in session.execute(query)]
