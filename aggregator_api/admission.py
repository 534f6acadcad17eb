"""Whether an update may come in, judged by its manifest alone: asked before its bytes are taken, and again after."""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from aggregator_api.contract import Contract
from aggregator_api.errors import UpdateRefusedError
from aggregator_api.records import (
    device_named,
    federation_named,
    last_number,
    open_round,
    participation,
    read_round,
    round_numbered,
    standing,
)
from aggregator_api.tables import DeviceRow, FederationRow, UpdateRow
from federation.plan import RoundSettings
from federation.protocol.messages import UpdateManifest
from federation.server_round import Action, RoundPhase, UpdateArrived, step


def known_update(session: Session, federation: str, device: str, update_id: str) -> UpdateRow | None:
    """Return the row of an update that has been accepted or quarantined."""
    return session.scalar(
        select(UpdateRow)
        .join(DeviceRow)
        .join(FederationRow, DeviceRow.federation_id == FederationRow.id)
        .where(FederationRow.name == federation, DeviceRow.name == device, UpdateRow.update_id == update_id)
    )


def barred(session: Session, federation: FederationRow, device: str, *, enrolled_only: bool) -> str:
    """Say why nothing is taken from a device; empty if it may take part."""
    row = device_named(session, federation, device)
    state = row.enrolment if row else "open"
    if state == "revoked":
        return f"device {device!r} was revoked by the operator"
    if not enrolled_only or state == "approved":
        return ""
    if state == "pending":
        return f"device {device!r} awaits the operator's approval"
    return f"device {device!r} is not enrolled in {federation.name!r}; enrol it with a token"


def close_doors(session: Session) -> None:
    """Let no round count on devices that came in while no approval was needed."""
    present = DeviceRow.state != "offline"
    session.execute(update(DeviceRow).where(DeviceRow.enrolment != "approved", present).values(state="offline"))


def sender(
    session: Session, federation: str, device: str, *, enrolled_only: bool = False
) -> tuple[FederationRow, DeviceRow]:
    """Return the federation and the device that a topic names.

    Raises:
        UpdateRefusedError: if one of them is not known here, or the device may not take part.
    """
    found = federation_named(session, federation)
    if found is None:
        raise UpdateRefusedError(f"there is no federation {federation!r} on this server")
    if reason := barred(session, found, device, enrolled_only=enrolled_only):
        raise UpdateRefusedError(reason)
    enrolled = device_named(session, found, device)
    if enrolled is None:
        raise UpdateRefusedError(f"device {device!r} is not enrolled in {federation!r}; publish a status first")
    return found, enrolled


def admit(
    session: Session,
    federation: FederationRow,
    device: DeviceRow,
    manifest: UpdateManifest,
    update_id: str,
    contract: Contract,
) -> None:
    """Check that the manifest is the device's own, fits the federation, and that the round would take it now.

    Raises:
        UpdateRefusedError: saying what came and what was expected.
    """
    topic = (federation.name, device.name, update_id)
    claimed = (manifest.federation, manifest.client, manifest.update_id)
    if claimed != topic:
        raise UpdateRefusedError(
            f"the manifest is of {'/'.join(claimed)}, but came on the topic of {'/'.join(topic)}", quarantine=True
        )
    contract.check_manifest(manifest)
    _check_base(session, federation, device, manifest)
    _check_round(session, federation, device, manifest, contract)


def must_wait(session: Session, federation: FederationRow, settings: RoundSettings) -> bool:
    """Whether no round collects now, but one will that takes late updates: what comes meanwhile is kept for it."""
    if settings.late != "next" or federation.status not in ("running", "paused"):
        return False
    row = open_round(session, federation)
    phase = row.phase if row else None
    if phase in (RoundPhase.COLLECTING, RoundPhase.ANNOUNCED):
        return phase == RoundPhase.ANNOUNCED
    return last_number(session, federation) < settings.rounds


def _check_base(session: Session, federation: FederationRow, device: DeviceRow, manifest: UpdateManifest) -> None:
    base = round_numbered(session, federation, manifest.round)
    if base is None:
        raise UpdateRefusedError(f"round {manifest.round} has not begun")
    part = participation(session, base, device)
    if part is None or not part.invited:
        raise UpdateRefusedError(f"{device.name} is not in the cohort of round {manifest.round}")
    if manifest.base_version != part.broadcast_sha256:
        raise UpdateRefusedError(
            f"the update started from {manifest.base_version[:12]}…, {device.name} got "
            f"{str(part.broadcast_sha256)[:12]}… in round {manifest.round}",
            quarantine=True,
        )


def _check_round(
    session: Session, federation: FederationRow, device: DeviceRow, manifest: UpdateManifest, contract: Contract
) -> None:
    if not must_wait(session, federation, contract.plan.rounds):
        row = open_round(session, federation)
        if row is None:
            raise UpdateRefusedError(f"no round is open; round {manifest.round} is over")
        # the machine is pure: asking it changes nothing, and its answer is the one that counts later
        arrived, part = UpdateArrived(device.name, manifest.round), participation(session, row, device)
        answer = step(contract.plan.rounds, read_round(row), arrived, standing(part))
        if Action.REFUSE in answer.actions:
            raise UpdateRefusedError(answer.reason)
    twice = select(UpdateRow).where(
        UpdateRow.device_id == device.id,
        UpdateRow.base_round == manifest.round,
        UpdateRow.status.in_(("accepted", "held")),
    )
    if session.scalar(twice) is not None:
        raise UpdateRefusedError(f"{device.name} has already reported for round {manifest.round}")
