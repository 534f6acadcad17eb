"""Reading and writing what the round machine knows as rows; every function works inside its caller's transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.tables import (
    DeviceRow,
    EventRow,
    FederationRow,
    ModelAliasRow,
    ModelVersionRow,
    ParticipationRow,
    RoundRow,
)
from federation.server_round import Round, RoundPhase

log = logging.getLogger("aggregator_api")

ENDED = (RoundPhase.PUBLISHED, RoundPhase.FAILED)
OFFLINE_STATES = ("offline", "collecting")


def journal(
    session: Session, federation: FederationRow, kind: str, *, round_number: int = 0, device: str = "", detail: str = ""
) -> None:
    """Write an event row and the same line to the log."""
    log.info("%s federation=%s round=%d device=%s %s", kind, federation.name, round_number, device or "-", detail)
    session.add(
        EventRow(
            federation_id=federation.id,
            kind=kind,
            round_number=round_number,
            device=device,
            detail=detail,
            created_at=time.time(),
        )
    )


def federation_named(session: Session, name: str) -> FederationRow | None:
    """Find a federation."""
    return session.scalar(select(FederationRow).where(FederationRow.name == name))


def device_named(session: Session, federation: FederationRow, name: str) -> DeviceRow | None:
    """Find a device of a federation."""
    return session.scalar(select(DeviceRow).where(DeviceRow.federation_id == federation.id, DeviceRow.name == name))


def online_devices(session: Session, federation: FederationRow) -> dict[str, DeviceRow]:
    """Return the devices that could train now, by name."""
    found = session.scalars(
        select(DeviceRow).where(DeviceRow.federation_id == federation.id, DeviceRow.state.not_in(OFFLINE_STATES))
    )
    return {row.name: row for row in found}


def open_round(session: Session, federation: FederationRow) -> RoundRow | None:
    """Return the round that has not ended, if there is one; there is never more than one."""
    return session.scalar(select(RoundRow).where(RoundRow.federation_id == federation.id, RoundRow.phase.not_in(ENDED)))


def round_numbered(session: Session, federation: FederationRow, number: int) -> RoundRow | None:
    """Find a round."""
    return session.scalar(select(RoundRow).where(RoundRow.federation_id == federation.id, RoundRow.number == number))


def last_number(session: Session, federation: FederationRow) -> int:
    """Return the number of the latest round, 0 before the first."""
    found = session.scalar(select(func.max(RoundRow.number)).where(RoundRow.federation_id == federation.id))
    return found or 0


def current_version(session: Session, federation: FederationRow) -> ModelVersionRow:
    """Return the model version that the alias `stable` names."""
    return session.scalars(
        select(ModelVersionRow)
        .join(ModelAliasRow, ModelAliasRow.version_id == ModelVersionRow.id)
        .where(ModelAliasRow.federation_id == federation.id, ModelAliasRow.alias == "stable")
    ).one()


def point_alias(session: Session, federation: FederationRow, alias: str, version_id: int) -> None:
    """Move an alias to a model version."""
    session.merge(ModelAliasRow(federation_id=federation.id, alias=alias, version_id=version_id))


def add_round(
    session: Session, federation: FederationRow, number: int, cohort: list[DeviceRow], deadline: float | None
) -> None:
    """Write a new round in phase `announced` and invite its cohort."""
    fresh = Round(number, tuple(device.name for device in cohort))
    session.add(
        RoundRow(
            federation_id=federation.id,
            number=number,
            phase=str(fresh.phase),
            paused=fresh.paused,
            deadline_passed=fresh.deadline_passed,
            reason=fresh.reason,
            base_version_id=current_version(session, federation).id,
            deadline_at=deadline,
            opened_at=time.time(),
            closed_at=None,
            participations=[
                ParticipationRow(device_id=device.id, invited=True, outcome="waiting", rounds_late=None)
                for device in cohort
            ],
        )
    )
    names = " ".join(fresh.cohort)
    journal(session, federation, "round.announced", round_number=number, detail=f"{len(cohort)} invited: {names}"[:500])


def read_round(row: RoundRow) -> Round:
    """Return the round machine's record of a row and its participations."""
    parts = sorted(row.participations, key=lambda part: part.device.name)
    return Round(
        number=row.number,
        cohort=tuple(part.device.name for part in parts if part.invited),
        phase=RoundPhase(row.phase),
        received={part.device.name: part.rounds_late for part in parts if part.rounds_late is not None},
        lost=frozenset(part.device.name for part in parts if part.outcome == "lost"),
        paused=row.paused,
        deadline_passed=row.deadline_passed,
        reason=row.reason,
    )


def write_round(session: Session, federation: FederationRow, row: RoundRow, new: Round) -> None:
    """Write the round machine's record into its row and participations."""
    row.paused, row.deadline_passed, row.reason = new.paused, new.deadline_passed, new.reason
    if row.phase != new.phase:
        row.phase = str(new.phase)
        row.closed_at = time.time() if new.phase in ENDED else None
        journal(session, federation, f"round.{new.phase}", round_number=new.number, detail=new.reason)
    parts = {part.device.name: part for part in row.participations}
    for name in _changed(parts, new):
        part = parts.get(name) or _late_comer(session, federation, row, name)
        part.rounds_late = new.received.get(name)
        part.outcome = "received" if name in new.received else "lost"


def _changed(parts: dict[str, ParticipationRow], new: Round) -> Iterable[str]:
    ended = [*new.received, *new.lost]
    return [name for name in ended if name not in parts or parts[name].outcome == "waiting"]


def _late_comer(session: Session, federation: FederationRow, row: RoundRow, name: str) -> ParticipationRow:
    """Add a device that was not invited: its update is from an earlier round."""
    device = device_named(session, federation, name)
    part = ParticipationRow(round=row, device=device, invited=False, outcome="waiting", rounds_late=None)
    session.add(part)
    return part
