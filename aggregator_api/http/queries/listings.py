"""Queries for operators: rows as views, in pages; every function works inside its caller's session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import BindParameter, Select, bindparam, func, inspect, select, true
from sqlalchemy.orm import InstrumentedAttribute, Session

from aggregator_api.core.errors import NotFoundError
from aggregator_api.devices import contributions, suspension
from aggregator_api.http.queries import resources
from aggregator_api.http.queries.credentials import Key, Token
from aggregator_api.rollouts import scores as version_scores
from aggregator_api.rounds.updates.screening import EXCLUDED
from aggregator_api.storage.db import epochs, repositories
from aggregator_api.storage.db.audit import Filters, select_entries
from aggregator_api.storage.db.models import (
    AuditRow,
    CredentialRow,
    DeviceRow,
    DeviceTagRow,
    EnrolmentTokenRow,
    EpochRow,
    EventRow,
    FederationRow,
    MetricRow,
    ModelAliasRow,
    ModelVersionRow,
    ParticipationRow,
    RoundRow,
    UpdateRow,
)
from federation.protocol.messages import UpdateManifest, VersionScore
from federation.rounds import progress
from federation.rounds.server_round import ClientStatus

Row = TypeVar("Row")
Item = TypeVar("Item")


class PageParams(NamedTuple):
    """Which part of a listing is wanted."""

    cursor: int
    limit: int
    newest_first: bool = False


def federations(session: Session, only: str | None, page: PageParams) -> resources.Page[resources.FederationSummary]:
    """List the federations, or only the one of that name."""
    query = select(FederationRow)
    if only is not None:
        query = query.where(FederationRow.name == only)
    return paginate(session, query, FederationRow.id, page, resources.FederationSummary.model_validate)


def federation(session: Session, row: FederationRow) -> resources.FederationDetail:
    """Describe a federation."""
    now, continuous = session.execute(_DETAIL, {"federation": row.id}).one(), _continuous(session, row)
    return resources.FederationDetail.model_validate(
        {
            **columns(row),
            "epoch": now.EpochRow.epoch,
            "restored_at": now.EpochRow.restored_at,
            "summary": _in_words(row.status, now.last or 0, now.RoundRow, now.EpochRow, continuous),
            "round": now.last or 0,
            "published_rounds": now.published,
            "round_phase": now.RoundRow.phase if now.RoundRow else None,
            "devices": now.devices,
            "devices_online": now.online,
            "plan_refusals": suspension.counts(session, row) if now.refusing else [],
            "model": _versions(session, row, [now.ModelVersionRow])[0],
            "feature_model": _pointer_to(row.feature_model_sha256, row.feature_model_size),
            "program": {
                "state": row.program_state,
                "note": row.program_note,
                "file": _pointer_to(row.program_sha256, row.program_size),
            },
            "continuous": continuous,
        }
    )


def _continuous(session: Session, row: FederationRow) -> resources.ContinuousState | None:
    if not row.kind.sums:
        return None
    plan = row.parsed_plan
    if row.kind.masked:
        online = repositories.could_train(row, plan.rounds.cohort_tags, at=time.time())
        counts = contributions.counts_online(session, row, online)
        return resources.ContinuousState(devices=counts.devices, changes_waiting=counts.changed, next_version_at=None)
    found = contributions.counts(session, row)
    at = None
    if row.status == "running":
        at = progress.publication_due_at(plan.publication, contributions.waiting(found), found.last)
    return resources.ContinuousState(devices=found.devices, changes_waiting=found.waiting, next_version_at=at)


def _pointer_to(sha256: str | None, size: int | None) -> dict[str, Any] | None:
    return {"sha256": sha256, "size": size, "url": f"/v1/blobs/{sha256}"} if sha256 else None


def _detail() -> Select[Any]:
    """Select all that a federation's description needs of the moment, with one statement: it is asked for most."""
    federation_id: BindParameter[int] = bindparam("federation")
    counted = select(func.count()).select_from(DeviceRow).where(DeviceRow.federation_id == federation_id)
    able = (DeviceRow.state.not_in(repositories.OFFLINE_STATES), DeviceRow.suspended_at.is_(None))
    online, refusing = counted.where(*able, DeviceRow.plan_refusal == ""), counted.where(DeviceRow.plan_refusal != "")
    last = select(func.max(RoundRow.number)).where(RoundRow.federation_id == federation_id)
    published = select(func.max(ModelVersionRow.version)).where(ModelVersionRow.federation_id == federation_id)
    figures = {"devices": counted, "online": online, "refusing": refusing, "last": last, "published": published}
    labelled = (figure.scalar_subquery().label(name) for name, figure in figures.items())
    query = select(EpochRow, ModelVersionRow, RoundRow, *labelled)
    query = query.select_from(ModelAliasRow).join(ModelVersionRow, ModelVersionRow.id == ModelAliasRow.version_id)
    is_open = (RoundRow.federation_id == federation_id) & RoundRow.phase.not_in(repositories.ENDED)
    query = query.join(EpochRow, true()).outerjoin(RoundRow, is_open)
    return query.where(ModelAliasRow.federation_id == federation_id, ModelAliasRow.alias == "latest")


_DETAIL = _detail()


def _in_words(
    status: str,
    number: int,
    current: RoundRow | None,
    epoch: EpochRow,
    continuous: resources.ContinuousState | None,
) -> str:
    """Say where a federation stands, and whether the server was restored."""
    if continuous is not None:
        devices, changes = continuous.devices, continuous.changes_waiting
        whose = "1 device's sums" if devices == 1 else f"{devices:,} devices' sums"
        now = f"{status}, continuous: {whose}, {changes:,} change{'s wait' if changes != 1 else ' waits'}"
    elif current is None:
        now = f"{status}, no round is open after round {number}" if number else f"{status}, no round has begun yet"
    else:
        parts = current.pending + current.received
        now = f"{status}, round {number} is {current.phase}: {current.received} of {parts} devices have reported"
    return "; ".join(filter(None, (now, epochs.restored_words(epoch))))


def rounds(session: Session, row: FederationRow, page: PageParams) -> resources.Page[resources.RoundView]:
    """List the rounds of a federation."""
    query = select(RoundRow).where(RoundRow.federation_id == row.id)
    return paginate(session, query, RoundRow.id, page, resources.RoundView.model_validate)


def round_detail(session: Session, row: RoundRow) -> resources.RoundDetail:
    """Describe a round; the database counts its devices."""
    part = ParticipationRow
    query = select(part.invited, part.outcome, func.count()).where(part.round_id == row.id)
    counts = session.execute(query.group_by(part.invited, part.outcome)).all()
    return resources.RoundDetail(
        **resources.RoundView.model_validate(row).model_dump(),
        base_model=row.base_version.broadcast_sha256,
        invited=sum(count for invited, _, count in counts if invited),
        received=sum(count for _, outcome, count in counts if outcome == ClientStatus.RECEIVED),
        lost=sum(count for _, outcome, count in counts if outcome == ClientStatus.LOST),
    )


def participants(session: Session, row: RoundRow, page: PageParams) -> resources.Page[resources.Participant]:
    """List the devices of a round, with their updates."""
    updates = {
        update.device_id: update for update in session.scalars(select(UpdateRow).where(UpdateRow.round_id == row.id))
    }

    def view(part: ParticipationRow) -> resources.Participant:
        return _participant(part, updates.get(part.device_id))

    query = select(ParticipationRow).where(ParticipationRow.round_id == row.id)
    return paginate(session, query, ParticipationRow.device_id, page, view)


def metrics(
    session: Session, row: FederationRow, round_number: int | None, page: PageParams
) -> resources.Page[resources.ReportedMetric]:
    """List what the devices of a federation measured, in all rounds or in one."""
    query = select(MetricRow).where(MetricRow.federation_id == row.id)
    if round_number is not None:
        query = query.where(MetricRow.round_number == round_number)

    def view(metric: MetricRow) -> resources.ReportedMetric:
        return resources.ReportedMetric.model_validate({**columns(metric), "device": metric.device.name})

    return paginate(session, query, MetricRow.id, page, view)


class DeviceFilter(NamedTuple):
    """Which devices are wanted: of one enrolment state, of one group, suspended, of names that begin so."""

    enrolment: str | None = None
    tag: str | None = None
    suspended: bool = False
    find_name: str = ""


def devices(
    session: Session, row: FederationRow, wanted: DeviceFilter, page: PageParams
) -> resources.Page[resources.Device]:
    """List the devices of a federation that are wanted."""
    # of rows, not of objects: most of the time of a page's hundred objects went into their empty lists of groups
    query = repositories.of_devices(
        select(*_SHOWN_OF_DEVICES), wanted.enrolment, wanted.tag, suspended=wanted.suspended
    )
    query = query.where(DeviceRow.federation_id == row.id)
    if wanted.find_name:
        query = query.where(DeviceRow.name.startswith(wanted.find_name, autoescape=True))
    query = query.where(DeviceRow.id > page.cursor).order_by(DeviceRow.id).limit(page.limit + 1)
    found = session.execute(query).mappings().all()
    tags: dict[int, list[str]] = {device["id"]: [] for device in found[: page.limit]}
    named = select(DeviceTagRow.device_id, DeviceTagRow.tag).where(DeviceTagRow.device_id.in_(tags))
    for device, name in session.execute(named.order_by(DeviceTagRow.tag)):
        tags[device].append(name)
    items = [resources.Device(**device, tags=tags[device["id"]]) for device in found[: page.limit]]
    return resources.Page(items=items, next_cursor=items[-1].id if len(found) > page.limit else None)


_SHOWN_OF_DEVICES = [getattr(DeviceRow, name) for name in resources.Device.model_fields if name != "tags"]


def updates(
    session: Session, row: FederationRow, status: str | None, page: PageParams
) -> resources.Page[resources.UpdateView]:
    """List the updates of a federation, all or those of one status."""
    query = select(UpdateRow).where(UpdateRow.federation_id == row.id)
    if status is not None:
        query = query.where(UpdateRow.status == status)
    return paginate(session, query, UpdateRow.id, page, update_view)


def update_view(row: UpdateRow) -> resources.UpdateView:
    """Describe an update."""
    return resources.UpdateView.model_validate({**columns(row), "device": row.device.name})


def model_versions(session: Session, row: FederationRow, page: PageParams) -> resources.Page[resources.ModelVersion]:
    """List the global models of a federation."""
    query = select(ModelVersionRow).where(ModelVersionRow.federation_id == row.id)
    found, following = _shown(session, query, ModelVersionRow.id, page)
    return resources.Page(items=_versions(session, row, found), next_cursor=following)


def aliases(session: Session, row: FederationRow) -> list[resources.Alias]:
    """List the aliases of a federation's models; there are few."""
    query = select(ModelAliasRow.alias, ModelAliasRow.note, ModelVersionRow).join(
        ModelVersionRow, ModelVersionRow.id == ModelAliasRow.version_id
    )
    found = session.execute(query.where(ModelAliasRow.federation_id == row.id).order_by(ModelAliasRow.alias))
    return [
        resources.Alias(alias=alias, version=version.version, sha256=sha256, url=f"/v1/blobs/{sha256}", note=note)
        for alias, note, version in found
        if (sha256 := version.broadcast_sha256)
    ]


def model_version(session: Session, row: FederationRow, number: int) -> resources.ModelVersion:
    """Describe one global model.

    Raises:
        NotFoundError: if there is no such version.
    """
    found = session.scalar(
        select(ModelVersionRow).where(ModelVersionRow.federation_id == row.id, ModelVersionRow.version == number)
    )
    if found is None:
        raise NotFoundError(f"federation {row.name!r} has no model version {number}")
    return _versions(session, row, [found])[0]


def events(session: Session, row: FederationRow | None, page: PageParams) -> resources.Page[resources.Event]:
    """List the events of a federation, or (None) of all."""
    query = select(EventRow)
    if row is not None:
        query = query.where(EventRow.federation_id == row.id)
    return paginate(session, query, EventRow.id, page, resources.Event.model_validate)


def keys(session: Session, federation: str | None, page: PageParams) -> resources.Page[Key]:
    """List the API keys, of the whole server or of one federation."""
    query = select(CredentialRow)
    if federation is not None:
        query = query.join(FederationRow, CredentialRow.federation_id == FederationRow.id)
        query = query.where(FederationRow.name == federation)
    return paginate(session, query, CredentialRow.id, page, lambda row: key(session, row))


def key(session: Session, row: CredentialRow) -> Key:
    """Describe an API key."""
    federation = session.get(FederationRow, row.federation_id) if row.federation_id else None
    device = session.get(DeviceRow, row.device_id) if row.device_id else None
    names = {"federation": federation and federation.name, "device": device and device.name}
    return Key.model_validate({**columns(row), **names})


def tokens(session: Session, row: FederationRow, page: PageParams) -> resources.Page[Token]:
    """List the enrolment tokens of a federation."""
    query = select(EnrolmentTokenRow).where(EnrolmentTokenRow.federation_id == row.id)
    return paginate(session, query, EnrolmentTokenRow.id, page, Token.model_validate)


def audit(session: Session, filters: Filters, page: PageParams) -> resources.Page[resources.AuditEntry]:
    """List the entries of the audit that fit."""
    return paginate(session, select_entries(filters), AuditRow.id, page, resources.AuditEntry.model_validate)


def paginate(
    session: Session,
    query: Select[Row],
    key: InstrumentedAttribute[int],
    page: PageParams,
    view: Callable[[Row], Item],
) -> resources.Page[Item]:
    """Return the part of a listing that a window shows; rows are ordered by `key`."""
    found, following = _shown(session, query, key, page)
    return resources.Page(items=[view(row) for row in found], next_cursor=following)


def _shown(
    session: Session, query: Select[Row], key: InstrumentedAttribute[int], page: PageParams
) -> tuple[Sequence[Row], int | None]:
    """Return the rows of a page, and the cursor of the next one."""
    if not page.newest_first:
        query = query.where(key > page.cursor).order_by(key)
    else:
        query = query.order_by(key.desc())
        query = query.where(key < page.cursor) if page.cursor else query
    found: Sequence[Row] = session.scalars(query.limit(page.limit + 1)).all()
    shown = found[: page.limit]
    return shown, getattr(shown[-1], key.key) if len(found) > page.limit else None


def _versions(
    session: Session,
    federation: FederationRow,
    rows: Sequence[ModelVersionRow],
) -> list[resources.ModelVersion]:
    """Describe model versions of a federation; however many, with two statements."""
    ids = [row.id for row in rows]
    named = select(ModelAliasRow.version_id, ModelAliasRow.alias).where(ModelAliasRow.version_id.in_(ids))
    aliases: dict[int, list[str]] = {}
    for version, alias in session.execute(named.order_by(ModelAliasRow.alias)):
        aliases.setdefault(version, []).append(alias)
    scores = version_scores.scores_of(session, federation, ids)
    return [
        resources.ModelVersion.model_validate(
            {
                **columns(row),
                "aliases": sorted(aliases.get(row.id, ())),
                "url": f"/v1/blobs/{row.broadcast_sha256}",
                "score": _score(scores.get(row.id)),
            }
        )
        for row in rows
    ]


def _score(found: VersionScore | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "metric": found.metric,
        "value": found.value / 1e6,
        "trivial": found.trivial / 1e6,
        "devices": found.devices,
        "working": found.working,
        "measured": found.measured,
    }


def _participant(part: ParticipationRow, update: UpdateRow | None) -> resources.Participant:
    known: dict[str, Any] = {
        "device": part.device.name,
        "invited": part.invited,
        "outcome": part.outcome,
        "rounds_late": part.rounds_late,
        "base_model": part.broadcast_sha256,
    }
    if update is not None:
        manifest = UpdateManifest.model_validate(update.manifest)
        known |= {
            "update_id": update.update_id,
            "sha256": update.sha256,
            "bytes": update.size,
            "examples": manifest.examples,
            "counted_examples": _counted(update, manifest.examples, part.round.norms is not None),
            "steps": manifest.steps,
            "norms": update.norms,
            "excluded": update.reason if update.status == EXCLUDED else None,
            "received_at": update.received_at,
        }
    return resources.Participant.model_validate(known)


def _counted(update: UpdateRow, claimed: int, judged: bool) -> int | None:
    if update.status == EXCLUDED or not judged:
        return None
    return claimed if update.counted_examples is None else update.counted_examples


def columns(row: Any) -> dict[str, Any]:
    """Return what a row holds, by the names of its attributes."""
    return {attribute.key: getattr(row, attribute.key) for attribute in inspect(row).mapper.column_attrs}


class EventFilter(NamedTuple):
    """A filter of events; empty or None values don't restrict it."""

    kinds: tuple[str, ...] = ()
    device: str = ""
    since: float | None = None
    until: float | None = None


ALL = EventFilter()


def latest_events(
    session: Session, federation: FederationRow, most: int, wanted: EventFilter = ALL, *, before: int | None = None
) -> Sequence[EventRow]:
    """Return the latest events that are wanted (before that id), the newest first."""
    query = select(EventRow).where(EventRow.federation_id == federation.id)
    if before is not None:
        query = query.where(EventRow.id < before)
    if wanted.kinds:
        query = query.where(EventRow.kind.in_(wanted.kinds))
    if wanted.device:
        query = query.where(EventRow.device == wanted.device)
    if wanted.since is not None:
        query = query.where(EventRow.created_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(EventRow.created_at < wanted.until)
    return session.scalars(query.order_by(EventRow.id.desc()).limit(most)).all()
