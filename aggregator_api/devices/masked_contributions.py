"""Which batch has each device's part in a continuous federation with secure sums, inside the caller's transaction.

The server never has a device's sums, so it keeps whom a batch has summed, and tells each device: from there the device
adds its difference. What a device has in the sums, only that device can take out. Where it is lost, the sums of all
others are collected anew: one batch to which each adds all that it has, and which takes the place of all sums before.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from aggregator_api.db import repositories
from aggregator_api.db.models import (
    DeviceRow,
    FederationRow,
    MaskedContributionRow,
    RoundRow,
    SecureSumRow,
)
from aggregator_api.devices.contributions import ContributionCounts
from federation.rounds.publication import LastPublication
from federation.secure_sums.messages import SumRequest, read

MAX_ANEW_WAIT_S = 86_400.0
"""Then sums are collected anew without those of the others who are away."""


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


def devices(session: Session, federation: FederationRow) -> set[str]:
    """Return the names of all devices that have ever said whether they have changes."""
    row = MaskedContributionRow
    query = select(DeviceRow.name).join(row, DeviceRow.id == row.device_id)
    return set(session.scalars(query.where(row.federation_id == federation.id)))


def ask_without(session: Session, federation: FederationRow, device: DeviceRow, *, at_once: bool = False) -> bool:
    """Have the sums collected anew without a device, which cannot take its own out; return whether it has any.

    That waits for the others who are in the sums to be here, for a day at most; `at_once`: it does not.
    """
    row = find(session, device)
    if row is None or not row.batch:
        return False
    if row.leaving_at is None:
        row.leaving_at = time.time()
        detail = "the sums of the others are collected anew"
        repositories.journal(session, federation, "device.withdrawn", device=device.name, detail=detail)
    _ask_anew(federation, at_once=at_once)
    session.flush()
    return True


def _ask_anew(federation: FederationRow, *, at_once: bool) -> None:
    due_at = time.time() + (0.0 if at_once else MAX_ANEW_WAIT_S)
    if federation.anew_due_at is None or due_at < federation.anew_due_at:
        federation.anew_due_at = due_at


def leave(session: Session, federation: FederationRow, device: DeviceRow) -> None:
    """Have the sums collected anew without a device that is about to be deleted, if it is in them."""
    row = find(session, device)
    if row is not None:
        if row.batch:
            _ask_anew(federation, at_once=False)
        session.delete(row)
        session.flush()


class Anew(NamedTuple):
    """Who could be in a batch that collects all sums anew."""

    here: frozenset[str]
    away: int
    changed: int
    """Of those who are here: with other sums than they have added."""


def anew(session: Session, federation: FederationRow, online: Collection[str]) -> Anew:
    """Return who of those online could be in a batch without those who are to go, and how many are away."""
    row = MaskedContributionRow
    query = select(DeviceRow.name, row.changed_at).join(row, DeviceRow.id == row.device_id)
    staying = (row.federation_id == federation.id, row.leaving_at.is_(None))
    new = query.where(*staying, row.batch == "", row.changed_at.is_not(None))
    found = dict(session.execute(query.where(*staying, row.batch != "")).all())
    candidates = found | dict(session.execute(new).all())
    here = frozenset(candidates) & frozenset(online)
    changed = sum(candidates[name] is not None for name in here)
    return Anew(here, len(found.keys() - here), changed)


def settle(session: Session, publication: RoundRow, version: int, devices: Collection[str]) -> None:
    """Note that a version has what its batch has summed, of these devices, and keep the sum for `fsck`.

    A batch that takes the place of all sums has nobody else's. A device that was to go after it was drawn is in it:
    then the sums are collected once more.
    """
    summed = session.get_one(SecureSumRow, publication.id)
    batch = read(SumRequest, summed.request).attempt.hex()
    mine = (DeviceRow.federation_id == publication.federation_id, DeviceRow.name.in_(devices))
    included = list(session.scalars(select(DeviceRow).where(*mine)))
    if summed.is_anew:
        _settle_anew(session, publication, [device.id for device in included])
    for device in included:
        row = find(session, device)
        if row is None:
            row = MaskedContributionRow(device_id=device.id, federation_id=publication.federation_id)
            session.add(row)
        row.batch, row.version, row.changed_at = batch, version, None  # one that has other sums by now says so
    others = select(RoundRow.id).where(RoundRow.federation_id == publication.federation_id)
    session.execute(update(SecureSumRow).where(SecureSumRow.round_id.in_(others)).values(added=None))
    summed.added = summed.total
    session.flush()


def _settle_anew(session: Session, publication: RoundRow, ids: Sequence[int]) -> None:
    row = MaskedContributionRow
    others = update(row).where(row.federation_id == publication.federation_id, row.device_id.not_in(ids))
    session.execute(others.values(batch="", version=None, leaving_at=None))
    still = select(row.device_id).where(row.device_id.in_(ids), row.leaving_at.is_not(None))
    if session.scalar(still.limit(1)) is None:
        session.get_one(FederationRow, publication.federation_id).anew_due_at = None
