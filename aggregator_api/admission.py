"""Whether an update may come in, judged by its manifest alone: asked before its bytes are taken, and again after."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.contract import Contract
from aggregator_api.errors import UpdateRefusedError
from aggregator_api.records import device_named, federation_named, open_round, read_round, round_numbered
from aggregator_api.tables import DeviceRow, FederationRow, UpdateRow
from federation.protocol.messages import UpdateManifest
from federation.server_round import Action, UpdateArrived, step


def known_update(session: Session, federation: str, device: str, update_id: str) -> UpdateRow | None:
    """Return the row of an update that has been accepted or quarantined."""
    return session.scalar(
        select(UpdateRow)
        .join(DeviceRow)
        .join(FederationRow, DeviceRow.federation_id == FederationRow.id)
        .where(FederationRow.name == federation, DeviceRow.name == device, UpdateRow.update_id == update_id)
    )


def sender(session: Session, federation: str, device: str) -> tuple[FederationRow, DeviceRow]:
    """Return the federation and the device that a topic names.

    Raises:
        UpdateRefusedError: if one of them is not known here.
    """
    found = federation_named(session, federation)
    if found is None:
        raise UpdateRefusedError(f"there is no federation {federation!r} on this server")
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
    _check_base(session, federation, manifest)
    _check_round(session, federation, device, manifest, contract)


def _check_base(session: Session, federation: FederationRow, manifest: UpdateManifest) -> None:
    base = round_numbered(session, federation, manifest.round)
    if base is None:
        raise UpdateRefusedError(f"round {manifest.round} has not begun")
    expected = base.base_version.broadcast_sha256
    if manifest.base_version != expected:
        raise UpdateRefusedError(
            f"the update started from {manifest.base_version[:12]}…, round {manifest.round} is based on "
            f"{expected[:12]}…",
            quarantine=True,
        )


def _check_round(
    session: Session, federation: FederationRow, device: DeviceRow, manifest: UpdateManifest, contract: Contract
) -> None:
    row = open_round(session, federation)
    if row is None:
        raise UpdateRefusedError(f"no round is open; round {manifest.round} is over")
    # the machine is pure: asking it changes nothing, and its answer is the one that counts later
    answer = step(contract.plan.rounds, read_round(row), UpdateArrived(device.name, manifest.round))
    if Action.REFUSE in answer.actions:
        raise UpdateRefusedError(answer.reason)
    twice = select(UpdateRow).where(
        UpdateRow.device_id == device.id, UpdateRow.base_round == manifest.round, UpdateRow.status == "accepted"
    )
    if session.scalar(twice) is not None:
        raise UpdateRefusedError(f"{device.name} has already reported for round {manifest.round}")
