"""The rows from a device's messages: its state, its updates, its metrics, its refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from aggregator_api.core.errors import UpdateRefusedError
from aggregator_api.devices import suspension
from aggregator_api.rollouts import scores
from aggregator_api.rounds.updates.screening import EXCLUDED
from aggregator_api.storage.db.models import DeviceRow, FederationRow, MetricRow, UpdateRow
from aggregator_api.storage.db.repositories import Named, journal, put, table_of
from federation.errors import WireError
from federation.protocol.messages import DeviceStatus, UpdateManifest, read, write

METRIC_NAME_LENGTH = 64
QUARANTINED = "quarantined"
"""Status of an update that was broken or implausible; the same id with another manifest takes its place."""
_ADD_UPDATE, _ADD_METRICS = insert(table_of(UpdateRow)), insert(table_of(MetricRow))


def note_status(
    session: Session, federation: FederationRow, row: DeviceRow | None, name: str, status: DeviceStatus
) -> bool:
    """Enrol a device, which has no row, or update its row; return whether its state changed."""
    now = time.time()
    if row is None:
        if status.state == "offline":
            return False
        row = DeviceRow(
            federation_id=federation.id,
            name=name,
            state="offline",
            examples=0,
            detail="",
            enrolled_at=now,
            seen_at=now,
        )
        session.add(row)
        journal(session, federation, "device.enrolled", device=name)
    changed = row.state != status.state
    if changed:
        last = status.detail if status.state == "offline" else ""
        journal(session, federation, f"device.{status.state}", round_number=status.round, device=name, detail=last)
    if changed or status.detail or status.state != "offline":  # a last will does not unsay why somebody left
        row.detail = status.detail
    row.state = status.state
    if status.state != "offline":  # a last will knows nothing about examples
        row.examples = status.examples
        suspension.note_refusal(session, federation, row, status.refusal)
    if changed or status.state != "offline":  # a repeated last will is no sign of life
        row.seen_at = now
    return changed


def note_clone(session: Session, federation: FederationRow, name: str) -> None:
    """Mark a device under whose name two programs were found."""
    marked = update(DeviceRow).where(DeviceRow.federation_id == federation.id, DeviceRow.name == name)
    session.execute(marked.values(cloned_at=time.time()))
    detail = "two programs take its connection from each other; the later one is told to stop"
    journal(session, federation, "device.cloned", device=name, detail=detail)


class Destination(NamedTuple):
    """Where an update has gone: `accepted` into a round or into the next version, or `deferred` to the next round."""

    status: str
    number: int
    round_id: int | None = None
    reason: str = ""


def note_update(
    session: Session,
    federation: Named,
    device: Named,
    manifest: UpdateManifest,
    place: Destination,
    norms: Mapping[str, float],
) -> None:
    """Record an update and its metrics; of those of a device in one round the latest count."""
    now, (status, number, round_id, reason) = time.time(), place
    detail = f"{manifest.size:,} bytes, {manifest.examples} examples" + (f"; {reason}" if reason else "")
    journal(session, federation, f"update.{status}", round_number=number, device=device.name, detail=detail)
    columns = {
        "federation_id": federation.id,
        "device_id": device.id,
        "round_id": round_id,
        "update_id": manifest.update_id,
        "base_round": number,
        "status": status,
        "reason": reason,
        "sha256": manifest.sha256,
        "size": manifest.size,
        "manifest": manifest.model_dump(mode="json"),
        "norms": dict(norms),
        "received_at": now,
    }
    put(session, _ADD_UPDATE, columns)
    measured = {name: value for name, value in manifest.metrics.items() if 0 < len(name) <= METRIC_NAME_LENGTH}
    common = {"federation_id": federation.id, "device_id": device.id, "round_number": number}
    if manifest.sequence is not None:  # of a continuous federation, where a device may send several for one version
        before = (MetricRow.device_id == device.id, MetricRow.round_number == number)
        known = select(MetricRow.name, MetricRow.value).where(MetricRow.federation_id == federation.id, *before)
        replaced = dict(session.connection().execute(known).all())
        scores.add_figures(session, federation.id, number, replaced, -1)
        session.execute(delete(MetricRow).where(MetricRow.federation_id == federation.id, *before))
    if measured:
        rows = [{**common, "name": name, "value": value, "recorded_at": now} for name, value in measured.items()]
        put(session, _ADD_METRICS, rows)
        scores.add_figures(session, federation.id, number, measured)


def note_refusal(
    session: Session,
    federation: Named,
    device: Named,
    update_id: str,
    refusal: UpdateRefusedError,
    manifest: UpdateManifest | None,
) -> None:
    """Record a refusal in the journal, and a bad update in quarantine with its reason."""
    number = manifest.round if manifest else 0
    kind = "update.quarantined" if refusal.quarantine else "update.refused"
    detail = f"{update_id}: {refusal.reason}"[:2000]
    journal(session, federation, kind, round_number=number, device=device.name, detail=detail)
    if not refusal.quarantine:
        return
    forget_quarantined(session, device, update_id)
    session.add(
        UpdateRow(
            federation_id=federation.id,
            device_id=device.id,
            round_id=None,
            update_id=update_id,
            base_round=number,
            status=QUARANTINED,
            reason=refusal.reason,
            sha256=manifest.sha256 if manifest else "",
            size=manifest.size if manifest else 0,
            manifest=json.loads(write(manifest)) if manifest else {},  # through text: NaN becomes null
            received_at=time.time(),
        )
    )


def quarantined_manifest(session: Session, device: Named, update_id: str) -> UpdateManifest | None:
    """Return the manifest of a device's quarantined update; None if nothing of it could be read."""
    wanted = (UpdateRow.device_id == device.id, UpdateRow.update_id == update_id, UpdateRow.status == QUARANTINED)
    found = session.scalar(select(UpdateRow.manifest).where(*wanted))
    try:
        return read(UpdateManifest, json.dumps(found).encode()) if found else None
    except WireError:  # it held what JSON has no numbers for
        return None


def last_exclusion(session: Session, device: Named) -> str:
    """Tell a device why its last update that a round left out was left out; empty if none was."""
    query = select(UpdateRow.base_round, UpdateRow.reason).where(
        UpdateRow.device_id == device.id, UpdateRow.status == EXCLUDED
    )
    row = session.execute(query.order_by(UpdateRow.id.desc()).limit(1)).first()
    return f"your update of round {row.base_round} was left out: {row.reason}" if row else ""


def forget_quarantined(session: Session, device: Named, update_id: str) -> None:
    """Make room for an update whose id was quarantined and has come again with another manifest."""
    received = (UpdateRow.device_id == device.id, UpdateRow.update_id == update_id)
    session.execute(delete(UpdateRow).where(*received, UpdateRow.status == QUARANTINED))
