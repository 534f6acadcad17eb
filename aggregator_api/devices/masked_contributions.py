"""Which devices' masked sums are in the newest version of a continuous federation, inside the caller's transaction.

The server never has one device's sums. It keeps the number that each device gave to the sums that it added last; the
number rises when they change. So the server can count the devices by which two sums differ. If these are fewer than
`secure.min_devices`, the difference would reveal too much about them.

A sum that came out impossible was seen all the same. Whoever is in it and not in a version since sits out until it has
other sums: nothing that was seen is added to another sum, so no difference of sums shows a part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Select, and_, case, func, select, update
from sqlalchemy.orm import Session

from aggregator_api.storage.db.models import (
    DeviceRow,
    FederationRow,
    MaskedContributionRow,
    RoundRow,
    SecureSumDeviceRow,
)


def note_status(session: Session, federation: FederationRow, device: DeviceRow, reported: int) -> bool:
    """Note the number of the sums that a device would add now; return whether that is news."""
    row = find(session, device)
    if row is None:
        session.add(_new(federation.id, device.id, reported))
    elif row.reported == reported:
        return False
    else:
        row.reported = reported
    session.flush()
    return True


def find(session: Session, device: DeviceRow) -> MaskedContributionRow | None:
    """Find what is known of a device's sums; None before its first status."""
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
    """Count the devices by which a sum differs from the newest version's: who comes, who goes, and who has other sums.

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


def settle(session: Session, publication: RoundRow, version: int, names: Sequence[str]) -> None:
    """Note that a version has the sums of these devices, and of nobody else."""
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
    """Return these devices' rows by name; who has none yet gets one."""
    devices = session.scalars(
        select(DeviceRow).where(DeviceRow.federation_id == federation_id, DeviceRow.name.in_(names))
    ).all()
    rows = {device.name: find(session, device) or _new(federation_id, device.id, 0) for device in devices}
    session.add_all(rows.values())
    return rows


def _new(federation_id: int, device_id: int, reported: int) -> MaskedContributionRow:
    return MaskedContributionRow(
        device_id=device_id, federation_id=federation_id, version=None, sequence=0, reported=reported, seen=0
    )
