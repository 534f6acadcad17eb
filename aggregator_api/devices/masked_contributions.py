"""Which batch has each device's part in a continuous federation with secure sums, inside the caller's transaction.

The server never has a device's sums, so it keeps whom a batch has summed, and tells each device: from there the device
adds its difference. What a device has in the sums, only that device can take out.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from aggregator_api.db.models import DeviceRow, FederationRow, MaskedContributionRow, RoundRow, SecureSumRow
from aggregator_api.devices.contributions import ContributionCounts
from federation.rounds.publication import LastPublication
from federation.secure_sums.messages import SumRequest, read


def note_status(session: Session, federation: FederationRow, device: DeviceRow, *, changed: bool) -> bool:
    """Note whether a device says that the next batch is to have it; return whether that is news."""
    row = find(session, device)
    if (row is not None and row.changed_at is not None) == changed:
        return False
    if row is None:
        row = MaskedContributionRow(device_id=device.id, federation_id=federation.id, batch="", version=None)
        session.add(row)
    row.changed_at = time.time() if changed else None
    session.flush()
    return True


def find(session: Session, device: DeviceRow) -> MaskedContributionRow | None:
    """Find what is known of a device's part; None before it has said that it has one."""
    return session.get(MaskedContributionRow, device.id)


def counts(session: Session, federation: FederationRow) -> ContributionCounts:
    """Count the devices that were in a published batch, and those that say that they have changes."""
    row = MaskedContributionRow
    query = select(func.count(row.version), func.count(row.changed_at), func.min(row.changed_at))
    devices, changes, oldest_at = session.execute(query.where(row.federation_id == federation.id)).one()
    ended = select(func.max(RoundRow.closed_at), func.max(RoundRow.number))
    at, number = session.execute(ended.where(RoundRow.federation_id == federation.id)).one()
    return ContributionCounts(devices, changes, oldest_at or 0.0, LastPublication(at, number or 0))


def batches(session: Session, federation: FederationRow) -> dict[str, str]:
    """Return, by device, the last published batch that has it; those that none has are left out."""
    row = MaskedContributionRow
    query = select(DeviceRow.name, row.batch).join(DeviceRow, DeviceRow.id == row.device_id)
    found = session.execute(query.where(row.federation_id == federation.id, row.batch != ""))
    return {row.name: row.batch for row in found}


def settle(session: Session, publication: RoundRow, version: int, devices: Collection[str]) -> None:
    """Note that a version has what its batch has summed, of these devices, and keep the sum for `fsck`."""
    summed = session.get_one(SecureSumRow, publication.id)
    batch = read(SumRequest, summed.request).attempt.hex()
    mine = (DeviceRow.federation_id == publication.federation_id, DeviceRow.name.in_(devices))
    for device in session.scalars(select(DeviceRow).where(*mine)):
        row = find(session, device)
        if row is None:
            row = MaskedContributionRow(device_id=device.id, federation_id=publication.federation_id)
            session.add(row)
        row.batch, row.version, row.changed_at = batch, version, None  # one that has other sums by now says so
    others = select(RoundRow.id).where(RoundRow.federation_id == publication.federation_id)
    session.execute(update(SecureSumRow).where(SecureSumRow.round_id.in_(others)).values(added=None))
    summed.added = summed.total
    session.flush()
