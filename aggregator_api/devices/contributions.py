"""Devices' contributions to the sums of continuous and private federations, as rows, inside the caller's transaction.

**In the clear.** A change is a row whose `sha256` differs from `published_sha256`. A publication takes the changes that
wait, computes Σ − old + new of their blobs, and settles them with the version's row. So the sum of the blobs that
`published_sha256` names is the newest version's sum, whatever was killed in between.

**Under masks.** The server never has one device's sums. It keeps the number that each device gave to the sums that it
added last; the number rises when they change. So the server can count the devices by which two sums differ. If these
are fewer than `secure.min_devices`, the difference would reveal too much about them.

A sum that came out impossible was seen all the same. Whoever is in it and not in a version since sits out until it has
other sums: nothing that was seen is added to another sum, so no difference of sums shows a part of it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Select, and_, case, delete, func, insert, select, update
from sqlalchemy.orm import Session

from aggregator_api.core.errors import ConflictError
from aggregator_api.storage.db import ledger, repositories
from aggregator_api.storage.db.models import (
    Blob,
    ContributionRow,
    DeviceRow,
    EndedAccessRow,
    FederationRow,
    MaskedContributionRow,
    RoundRow,
    SecureSumDeviceRow,
    UpdateRow,
)
from aggregator_api.storage.db.repositories import Named
from federation.aggregation.screening import Screening
from federation.protocol.messages import UpdateManifest
from federation.rounds.progress import LastPublication, WaitingChanges
from federation.rounds.server_round import ClientStatus

_ADD, _ADD_PART = insert(repositories.table_of(ContributionRow)), repositories.ADD_PARTICIPATIONS


class SumChange(NamedTuple):
    """A publication's change for one device: the added blob, and the removed one."""

    client: str  # empty: the device was deleted
    examples: int
    sha256: str | None
    replaces: str | None


class Contributed(NamedTuple):
    """A publication's input: its changes, or all devices' contributions."""

    changes: list[SumChange]
    present: list[SumChange]


class ContributionCounts(NamedTuple):
    """Where a continuous federation stands."""

    devices: int  # whose sums the newest version has
    waiting: int
    oldest_at: float
    last: LastPublication


def replace(session: Session, federation: Named, device: Named, manifest: UpdateManifest, blob: Blob | None) -> None:
    """Replace a device's earlier contribution with its new one, or (without a blob) its withdrawal."""
    row, now = find(session, device), time.time()
    values = {
        "sequence": manifest.sequence,
        "update_id": manifest.update_id,
        "update_sha256": manifest.sha256,
        "sha256": blob and blob.sha256,
        "size": blob and blob.size,
        "examples": manifest.examples,
        "class_counts": list(manifest.class_counts) if manifest.class_counts is not None else None,
        "received_at": now,
    }
    if row is None:
        owner = {"federation_id": federation.id, "device_id": device.id, "changed_at": now if blob else None}
        repositories.put(session, _ADD, {**values, **owner})
        return
    if blob is None:
        _note_end(session, federation, device, row)
    for name, value in values.items():
        setattr(row, name, value)
    _note_change(row, now)


def withdraw(session: Session, federation: FederationRow, device: DeviceRow) -> None:
    """Take a device's sums out at its operator's wish, from the next version on; twice changes nothing.

    Raises:
        ConflictError: if the device has none here.
    """
    row = find(session, device)
    if row is None:
        raise ConflictError(
            f"device {device.name!r} has no sums of its own in {federation.name!r}: only devices that have sent sums "
            f"to a continuous federation have them; with secure sums, revoke or delete it, and the next sum excludes it"
        )
    if row.sha256 is not None:
        _note_end(session, federation, device, row)
        _take_out(row)
        repositories.journal(session, federation, "device.withdrawn", device=device.name, detail="by the operator")


def withdraw_again(session: Session, subjects: Container[str]) -> int:
    """Take out what a backup has of devices that were taken out since; returns of how many.

    subjects: their entries in the ledger. Devices that take part again by now resend in the new epoch.
    """
    query = select(FederationRow.name, ContributionRow).join(
        ContributionRow, ContributionRow.federation_id == FederationRow.id
    )
    found = [
        row
        for federation, row in session.execute(query.where(ContributionRow.sha256.is_not(None)))
        if row.device is not None and ledger.subject_of("withdrawn", row.device.name, federation) in subjects
    ]
    for row in found:
        _take_out(row)
    session.flush()
    return len(found)


def leave(session: Session, device: DeviceRow) -> None:
    """Take a device's sums out that is about to be deleted; the row goes on without its name until they are out."""
    row = find(session, device)
    if row is None:
        return
    if row.published_sha256 is None and row.round_id is None:
        session.delete(row)
    else:
        _take_out(row)
        row.device_id = None
    session.flush()
    session.expire(device)


def find(session: Session, device: Named) -> ContributionRow | None:
    """Find what a device has in the sums."""
    return session.scalar(select(ContributionRow).where(ContributionRow.device_id == device.id))


def has_sums(session: Session, device: Named) -> bool:
    """Whether a device has something in the sums that can be taken out."""
    row = find(session, device)
    return row is not None and row.sha256 is not None


def counts(session: Session, federation: FederationRow) -> ContributionCounts:
    """Count the devices in the sums and the changes that wait."""
    row = ContributionRow
    query = select(func.count(row.published_sha256), func.count(row.changed_at), func.min(row.changed_at))
    devices, changes, oldest_at = session.execute(query.where(row.federation_id == federation.id)).one()
    ended = select(func.max(RoundRow.closed_at), func.max(RoundRow.number))
    at, number = session.execute(ended.where(RoundRow.federation_id == federation.id)).one()
    return ContributionCounts(devices, changes, oldest_at or 0.0, LastPublication(at, number or 0))


def waiting(found: ContributionCounts) -> WaitingChanges:
    """Return what the state machine asks for."""
    return WaitingChanges(found.waiting, found.oldest_at)


def take(session: Session, federation: FederationRow, publication: RoundRow) -> int:
    """Note that a publication takes every change that waits; return how many there are."""
    rows = session.scalars(
        select(ContributionRow).where(
            ContributionRow.federation_id == federation.id, ContributionRow.changed_at.is_not(None)
        )
    ).all()
    for row in rows:
        row.round_id, row.taken_sha256, row.taken_update_id = publication.id, row.sha256, row.update_id or None
    session.flush()
    return len(rows)


def contributed(session: Session, publication: RoundRow) -> Contributed:
    """Return what a publication has taken, and what every device then has in the sums, by the names of the devices."""
    in_federation = ContributionRow.federation_id == publication.federation_id
    changes, present = [], []
    for row in session.scalars(select(ContributionRow).where(in_federation)):
        name = row.device.name if row.device else ""
        is_taken = row.round_id == publication.id
        if is_taken:
            changes.append(SumChange(name, row.examples, row.taken_sha256, row.published_sha256))
        if sha256 := row.taken_sha256 if is_taken else row.published_sha256:
            present.append(SumChange(name, row.examples, sha256, None))
    changes.sort(key=lambda change: (change.client, change.replaces or ""))
    return Contributed(changes, sorted(present, key=lambda part: part.client))


def note_screening(session: Session, federation: FederationRow, publication: RoundRow, found: Screening) -> None:
    """Journal the devices whose sums a version newly caps or leaves out."""
    publication.capped, publication.excluded = len(found.capped), len(found.excluded)
    rows = session.scalars(select(ContributionRow).where(ContributionRow.round_id == publication.id))
    for name in sorted(row.device.name for row in rows if row.device):
        if name in found.excluded:
            detail = found.excluded[name]
            repositories.journal(
                session, federation, "update.excluded", round_number=publication.number, device=name, detail=detail
            )
        if name in found.capped:
            detail = f"{name} counts as with {found.capped[name]} examples (rounds.max_weight_ratio)"
            repositories.journal(session, federation, "round.capped", round_number=publication.number, detail=detail)


def settle(session: Session, publication: RoundRow, version: int) -> None:
    """Note that a version has what its publication has taken; what changed meanwhile waits for the next one."""
    rows = session.scalars(select(ContributionRow).where(ContributionRow.round_id == publication.id)).all()
    for row in rows:
        sent = (UpdateRow.device_id == row.device_id, UpdateRow.update_id == row.taken_update_id)
        session.execute(update(UpdateRow).where(*sent, UpdateRow.round_id.is_(None)).values(round_id=publication.id))
        row.published_sha256, row.published_version = row.taken_sha256, version if row.taken_sha256 else None
        row.round_id = row.taken_sha256 = row.taken_update_id = None
        row.changed_at = None if row.sha256 == row.published_sha256 else row.received_at
    session.flush()
    gone = (ContributionRow.device_id.is_(None), ContributionRow.published_sha256.is_(None))
    session.execute(delete(ContributionRow).where(ContributionRow.federation_id == publication.federation_id, *gone))
    used = list(session.scalars(select(UpdateRow.device_id).where(UpdateRow.round_id == publication.id)))
    parts = {"round_id": publication.id, "invited": False, "outcome": str(ClientStatus.RECEIVED), "rounds_late": None}
    if used:
        repositories.put(session, _ADD_PART, [{**parts, "device_id": device} for device in used])
    publication.received = len(used)
    session.flush()


def release(session: Session, publication_id: int) -> None:
    """Let the changes of a publication that has failed wait for the next one."""
    statement = update(ContributionRow).where(ContributionRow.round_id == publication_id)
    session.execute(statement.values(round_id=None, taken_sha256=None, taken_update_id=None))


def _take_out(row: ContributionRow) -> None:
    row.sha256 = row.size = None
    row.update_id, row.examples, row.received_at = "", 0, time.time()
    row.class_counts = None
    _note_change(row, row.received_at)


def _note_end(session: Session, federation: Named, device: Named, row: ContributionRow) -> None:
    """Have the ledger say that a device's sums are going, so that no backup brings them back for good."""
    if row.sha256 is not None:
        session.add(EndedAccessRow(kind="withdrawn", subject=device.name, federation=federation.name))


def _note_change(row: ContributionRow, now: float) -> None:
    """Keep the time of a change's first arrival; a device that is back at its published sums has no change."""
    is_changed = row.sha256 != row.published_sha256 or row.round_id is not None
    row.changed_at = (row.changed_at or now) if is_changed else None


def note_status(session: Session, federation: FederationRow, device: DeviceRow, reported: int) -> bool:
    """Note the number of the sums that a device would add now; return whether that is news."""
    row = find_masked(session, device)
    if row is None:
        session.add(_new(federation.id, device.id, reported))
    elif row.reported == reported:
        return False
    else:
        row.reported = reported
    session.flush()
    return True


def find_masked(session: Session, device: DeviceRow) -> MaskedContributionRow | None:
    """Find a device's row of sums; None before its first status."""
    return session.get(MaskedContributionRow, device.id)


class Counts(NamedTuple):
    """By how many devices the next sum would differ from the newest version's, and how many that one has."""

    devices: int
    changed: int


def counts_online(session: Session, federation: FederationRow, online: Sequence[ColumnElement[bool]]) -> Counts:
    """Count the changes that a sum of all `online` devices (conditions on their rows) would make."""
    row, may_add = MaskedContributionRow, (*online, DeviceRow.id.not_in(_sitting_out(federation.id)))
    present = select(DeviceRow.id).where(*may_add)
    both = and_(row.version.is_not(None), row.device_id.in_(present))
    query = select(
        func.count(row.version),
        func.coalesce(func.sum(case((both, 1), else_=0)), 0),
        func.coalesce(func.sum(case((and_(both, row.reported == row.sequence), 1), else_=0)), 0),
    )
    before, stays, same = session.execute(query.where(row.federation_id == federation.id)).one()
    now = session.scalars(select(func.count()).select_from(DeviceRow).where(*may_add)).one()
    return Counts(before, before + now - stays - same)


def count_changes(session: Session, federation_id: int, added: Mapping[str, int]) -> int:
    """Count the devices by which a sum differs from the newest version's: added, removed and changed ones.

    added: the numbers of the sums in it, by device.
    """
    row = MaskedContributionRow
    query = select(DeviceRow.name, row.sequence).join(DeviceRow, DeviceRow.id == row.device_id)
    found = session.execute(query.where(row.federation_id == federation_id, row.version.is_not(None)))
    before = dict(found.all())
    return sum(before.get(name) != added.get(name) for name in before.keys() | added.keys())


def note_seen(session: Session, federation_id: int, added: Mapping[str, int]) -> None:
    """Note that these sums (by device, their numbers) are in an impossible sum, which was seen."""
    for name, row in _rows(session, federation_id, added).items():
        row.seen = added[name]
    session.flush()


def sitting_out(session: Session, federation: FederationRow) -> frozenset[int]:
    """Return the devices that would add sums again that were seen in an impossible sum."""
    return frozenset(session.scalars(_sitting_out(federation.id)))


def is_seen(session: Session, device_id: int, sequence: int | None) -> bool:
    """Whether a device's sums of this number were seen in an impossible sum."""
    row = session.get(MaskedContributionRow, device_id)
    return bool(row and row.seen and row.seen == sequence)


def count_moved(session: Session, federation_id: int, added: Mapping[str, int]) -> int:
    """Count the devices that add other sums than those that were seen in an impossible sum."""
    rows = _rows(session, federation_id, added)
    return sum(row.seen not in (0, added[name]) for name, row in rows.items())


def sequences(session: Session, publication: RoundRow, names: Sequence[str]) -> dict[str, int]:
    """Return the numbers of the sums that these devices have added in an open round."""
    row = SecureSumDeviceRow
    query = select(DeviceRow.name, row.sequence).join(DeviceRow, DeviceRow.id == row.device_id)
    found = session.execute(query.where(row.round_id == publication.id, DeviceRow.name.in_(names)))
    return dict(found.all())


def settle_masked(session: Session, publication: RoundRow, version: int, names: Sequence[str]) -> None:
    """Note that a version has the sums of exactly these devices."""
    row, federation_id = MaskedContributionRow, publication.federation_id
    session.execute(update(row).where(row.federation_id == federation_id).values(version=None))
    added = sequences(session, publication, names)
    for name, found in _rows(session, federation_id, names).items():
        found.version, found.sequence, found.seen = version, added[name], 0
    session.flush()


def _sitting_out(federation_id: int) -> Select[int]:
    row = MaskedContributionRow
    return select(row.device_id).where(row.federation_id == federation_id, row.seen != 0, row.seen == row.reported)


def _rows(session: Session, federation_id: int, names: Collection[str]) -> dict[str, MaskedContributionRow]:
    """Return these devices' rows by name, creating missing ones."""
    devices = session.scalars(
        select(DeviceRow).where(DeviceRow.federation_id == federation_id, DeviceRow.name.in_(names))
    ).all()
    rows = {device.name: find_masked(session, device) or _new(federation_id, device.id, 0) for device in devices}
    session.add_all(rows.values())
    return rows


def _new(federation_id: int, device_id: int, reported: int) -> MaskedContributionRow:
    return MaskedContributionRow(
        device_id=device_id, federation_id=federation_id, version=None, sequence=0, reported=reported, seen=0
    )
