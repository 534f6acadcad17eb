"""Reading and writing what the round machine knows as rows; every function works inside its caller's transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.blobs import Blob
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


def is_broadcast(session: Session, sha256: str) -> bool:
    """Whether that blob was made for devices: for all of them, or for some in one round."""
    for column in (ModelVersionRow.broadcast_sha256, ParticipationRow.broadcast_sha256):
        if session.scalars(select(column).where(column == sha256).limit(1)).first() is not None:
            return True
    return False


def add_version(session: Session, federation: FederationRow, number: int, state: Blob, broadcast: Blob) -> None:
    """Write the model that a round made (0: the initial one), and let `stable` and `previous` move on."""
    aliases = {row.alias: row.version_id for row in _aliases(session, federation)}
    version = ModelVersionRow(
        federation_id=federation.id,
        version=current_version(session, federation).version + 1 if aliases else 0,
        round_number=number,
        state_sha256=state.sha256,
        broadcast_sha256=broadcast.sha256,
        broadcast_size=broadcast.size,
        created_at=time.time(),
    )
    session.add(version)
    session.flush()
    if aliases:
        session.merge(ModelAliasRow(federation_id=federation.id, alias="previous", version_id=aliases["stable"]))
    session.merge(ModelAliasRow(federation_id=federation.id, alias="stable", version_id=version.id))


def _aliases(session: Session, federation: FederationRow) -> Sequence[ModelAliasRow]:
    return session.scalars(select(ModelAliasRow).where(ModelAliasRow.federation_id == federation.id)).all()


def participation(session: Session, row: RoundRow, device: DeviceRow) -> ParticipationRow | None:
    """Find a device's part in a round."""
    return session.get(ParticipationRow, (row.id, device.id))


def add_round(
    session: Session, federation: FederationRow, number: int, cohort: list[DeviceRow], deadline: float | None
) -> None:
    """Write a new round in phase `announced`, its cohort, and that they all get the present broadcast."""
    fresh = Round(number, tuple(device.name for device in cohort))
    base = current_version(session, federation)
    session.add(
        RoundRow(
            federation_id=federation.id,
            number=number,
            phase=str(fresh.phase),
            paused=fresh.paused,
            deadline_passed=fresh.deadline_passed,
            reason=fresh.reason,
            base_version_id=base.id,
            deadline_at=deadline,
            opened_at=time.time(),
            closed_at=None,
            participations=[
                ParticipationRow(
                    device_id=device.id,
                    invited=True,
                    outcome="waiting",
                    rounds_late=None,
                    broadcast_sha256=base.broadcast_sha256,
                    broadcast_size=base.broadcast_size,
                )
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
    # a device that was given up for lost may have come after all
    outcomes = {**dict.fromkeys(new.lost, "lost"), **dict.fromkeys(new.received, "received")}
    for name, outcome in outcomes.items():
        if name not in parts or parts[name].outcome != outcome:
            part = parts.get(name) or _late_comer(session, federation, row, name)
            part.outcome, part.rounds_late = outcome, new.received.get(name)


def _late_comer(session: Session, federation: FederationRow, row: RoundRow, name: str) -> ParticipationRow:
    """Add a device that was not invited: its update is from an earlier round."""
    device = device_named(session, federation, name)
    part = ParticipationRow(round=row, device=device, invited=False, outcome="waiting")
    session.add(part)
    return part
