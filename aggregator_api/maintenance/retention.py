"""What is kept how long, and the deletion of what belongs to a federation, a device or a version."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Select, Table, delete, func, or_, select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import ConflictError
from aggregator_api.core.settings import Settings
from aggregator_api.devices import contributions
from aggregator_api.rollouts import scores, transitions
from aggregator_api.rollouts.scores import metric_in
from aggregator_api.storage.db import audit, repositories
from aggregator_api.storage.db.models import (
    NAMES_A_DEVICE,
    Base,
    DeviceRow,
    EventRow,
    FederationRow,
    ModelAliasRow,
    ModelVersionRow,
    RolloutDeviceRow,
    RoundRow,
    UpdateRow,
)
from aggregator_api.storage.db.repositories import ENDED, older_event, table_of
from federation.protocol import topics
from federation.rounds.rollout import AdoptionAnswer

DAY_S = 86_400.0


class RetentionResult(NamedTuple):
    """What was removed, or would be."""

    versions: int = 0
    updates: int = 0
    events: int = 0

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.versions} model versions, {self.updates} updates, {self.events} events"


def apply(session: Session, settings: Settings, *, actor: str, dry_run: bool = False) -> RetentionResult:
    """Remove what is older than the settings keep, inside the caller's transaction.

    Never a version that has a name, is the newest, that the open round started from or a rollout gives out; nor an
    update that the open round holds or that waits for one.
    """
    now = time.time()
    versions = 0
    if settings.keep_versions is not None:
        for federation in session.scalars(select(FederationRow)):
            old = old_versions(session, federation, settings.keep_versions)
            versions += len(old)
            if not dry_run:
                retire(session, federation, old)
    updates = events = 0
    if settings.update_retention_days is not None:
        open_rounds = select(RoundRow.id).where(RoundRow.phase.not_in(ENDED))
        settled = (UpdateRow.status != "deferred") & (
            UpdateRow.round_id.is_(None) | UpdateRow.round_id.not_in(open_rounds)
        )
        past = settled & (UpdateRow.received_at < now - settings.update_retention_days * DAY_S)
        updates = sum(remove_rows(session, [(table_of(UpdateRow), past)], dry_run=dry_run).values())
    if settings.event_retention_days is not None:
        gone = (EventRow.created_at < now - settings.event_retention_days * DAY_S) & older_event()
        events = sum(remove_rows(session, [(table_of(EventRow), gone)], dry_run=dry_run).values())
    retired = RetentionResult(versions, updates, events)
    if any(retired) and not dry_run:
        audit.record(session, "retention.apply", actor=actor, detail=str(retired))
    return retired


Counts = dict[str, int]
"""Rows that were deleted, or would be, by their table."""


class DeletedFederation(NamedTuple):
    """What was deleted, or would be; and the devices whose broker accounts and retained messages go too."""

    rows: Counts
    devices: list[str]


def remove_federation(session: Session, row: FederationRow, *, dry_run: bool) -> DeletedFederation:
    """Delete a federation's rows inside the caller's transaction, or count them.

    Raises:
        ConflictError: if it has not ended.
    """
    if not dry_run and row.status in ("running", "paused"):
        raise ConflictError(
            f"federation {row.name!r} is {row.status}; stop it first, or delete it with force, which stops it"
        )
    devices = list(session.scalars(select(DeviceRow.name).where(DeviceRow.federation_id == row.id)))
    deleted = remove_rows(session, belonging_to(row), dry_run=dry_run)
    return DeletedFederation(deleted, devices)


def retained_topics(name: str, devices: list[str]) -> list[str]:
    """Return the topics whose retained messages are about a federation."""
    kinds = (topics.invitation, topics.offer, topics.status)
    return [topics.announce(name), *(topic(name, device) for device in devices for topic in kinds)]


def belonging_to(row: FederationRow | DeviceRow) -> list[tuple[Table, ColumnElement[bool]]]:
    """Return what refers to a row, however indirectly, and the row: what nothing refers to any more comes first.

    The schema says it: a foreign key, or a column that holds devices' names (`NAMES_A_DEVICE` in its `info`). What the
    database itself deletes with what it refers to (`ON DELETE CASCADE`) is left to it.
    """
    theirs: dict[Table, ColumnElement[bool]] = {}
    for table in Base.metadata.sorted_tables:  # what is referred to comes before what refers to it
        if table is row.__table__:
            theirs[table] = table.c.id == row.id
            continue
        keys = [key for key in table.foreign_keys if key.column.table in theirs and key.ondelete != "CASCADE"]
        direct = [key.parent == getattr(row, key.column.name) for key in keys if key.column.table is row.__table__]
        found = direct or [key.parent.in_(select(key.column).where(theirs[key.column.table])) for key in keys]
        named = [column == row.name for column in table.c if column.info.get(NAMES_A_DEVICE)]
        if isinstance(row, DeviceRow) and named:
            found.append((table.c.federation_id == row.federation_id) & or_(*named))
        if found:
            theirs[table] = or_(*found)
    return list(reversed(theirs.items()))


def remove_device(session: Session, federation: FederationRow, row: DeviceRow, *, dry_run: bool) -> Counts:
    """Delete a device's rows inside the caller's transaction, or count them.

    Raises:
        ConflictError: if the open round has accepted an update of it, or waits for it.
    """
    if not dry_run:
        require_no_update_in_use(session, federation, row)
        _leave_rollout(session, federation, row)
        contributions.leave(session, row)
        scores.remove_device(session, row, metric_in(federation))
    removed = remove_rows(session, belonging_to(row), dry_run=dry_run)
    if not dry_run:  # without a name; announcements count by the newest event, which may have been the device's
        repositories.journal(session, federation, "device.deleted")
    return removed


def require_no_update_in_use(session: Session, federation: FederationRow, row: DeviceRow) -> None:
    """Check that the open round does not count on an update of a device.

    Raises:
        ConflictError: if it does.
    """
    if number := _open_round_of(session, federation, row, "received"):
        raise ConflictError(
            f"round {number} has accepted an update of {row.name!r}; wait until it has ended, or stop the federation"
        )


def _leave_rollout(session: Session, federation: FederationRow, row: DeviceRow) -> None:
    """Let the rollout under way not wait for the device; what it answered is counted no more."""
    release = transitions.under_way(session, federation)
    member = session.get(RolloutDeviceRow, (release.id, row.id)) if release is not None else None
    if release is None or member is None:
        return
    release.members -= 1
    release.successes -= AdoptionAnswer(member.answer).is_good
    release.failures -= AdoptionAnswer(member.answer).is_bad


def require_no_open_part(session: Session, federation: FederationRow, row: DeviceRow) -> None:
    """Check that the open round does not wait for a device: only the server itself can tell it not to.

    Raises:
        ConflictError: if it does.
    """
    if number := _open_round_of(session, federation, row, "waiting"):
        raise ConflictError(
            f"round {number} waits for {row.name!r}; DELETE it over REST, which tells the round, or wait"
        )


def _open_round_of(session: Session, federation: FederationRow, row: DeviceRow, outcome: str) -> int | None:
    """Return the number of the open round in which a device has this outcome."""
    open_one = repositories.open_round(session, federation)
    part = repositories.participation(session, open_one, row) if open_one is not None else None
    return open_one.number if open_one is not None and part is not None and part.outcome == outcome else None


# ---- model versions


def needed_for(session: Session, federation: FederationRow) -> dict[int, str]:
    """Return the versions that must stay, by their row's id, and why."""
    aliases = session.execute(
        select(ModelAliasRow.version_id, ModelAliasRow.alias)
        .where(ModelAliasRow.federation_id == federation.id)
        .order_by(ModelAliasRow.alias)
    )
    needed = {version_id: f"it has the name {alias!r}" for version_id, alias in aliases}
    open_one, release = repositories.open_round(session, federation), transitions.under_way(session, federation)
    if release is not None:
        needed.setdefault(release.version_id, f"rollout {release.number} gives it to devices")
    if open_one is not None:
        needed.setdefault(open_one.base_version_id, f"round {open_one.number} started from it")
    newest = select(func.max(ModelVersionRow.id)).where(ModelVersionRow.federation_id == federation.id)
    needed.setdefault(session.scalars(newest).one(), "it is the newest")
    return needed


def deletable(session: Session, federation: FederationRow, versions: Sequence[int]) -> list[ModelVersionRow]:
    """Return versions that nothing needs.

    Raises:
        NotFoundError: if there is no such version.
        ConflictError: if something needs one of them.
    """
    needed = needed_for(session, federation)
    rows = [repositories.version_of(session, federation, version) for version in versions]
    for row in rows:
        if reason := needed.get(row.id):
            raise ConflictError(f"version {row.version} cannot be deleted: {reason}")
    return rows


def retire(session: Session, federation: FederationRow, rows: list[ModelVersionRow]) -> None:
    """Mark versions as deleted; garbage collection removes their blobs."""
    for row in rows:
        if row.deleted_at is None:
            row.deleted_at = time.time()
            repositories.journal(session, federation, "model.deleted", detail=f"version {row.version}")


def old_versions(session: Session, federation: FederationRow, keep: int) -> list[ModelVersionRow]:
    """Return the versions beyond the `keep` newest that nothing needs."""
    query: Select[ModelVersionRow] = select(ModelVersionRow).where(
        ModelVersionRow.federation_id == federation.id, ModelVersionRow.deleted_at.is_(None)
    )
    needed = needed_for(session, federation)
    rows = session.scalars(query.order_by(ModelVersionRow.version.desc())).all()[keep:]
    return [row for row in rows if row.id not in needed]


def remove_rows(session: Session, parts: Sequence[tuple[Table, ColumnElement[bool]]], *, dry_run: bool) -> Counts:
    """Delete rows table by table, or only count them."""
    session.flush()
    counts: Counts = {}
    for table, theirs in parts:
        found = session.scalars(select(func.count()).select_from(table).where(theirs)).one()
        if found:
            counts[table.name] = found
        if found and not dry_run:
            session.execute(delete(table).where(theirs).execution_options(synchronize_session=False))
    if not dry_run:
        session.expunge_all()  # what was read of them is no more
    return counts
