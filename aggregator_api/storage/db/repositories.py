"""Reading and writing what the round machine knows as rows; every function works inside its caller's transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from typing import Any, Protocol, TypeVar, cast

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Executable,
    Select,
    Table,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session, selectinload

from aggregator_api.core.errors import ConflictError, NotFoundError
from aggregator_api.storage.db.event_kinds import EVENT_KINDS
from aggregator_api.storage.db.models import (
    Base,
    Blob,
    DeviceRow,
    DeviceTagRow,
    EventRow,
    FederationRow,
    ModelAliasRow,
    ModelVersionRow,
    ParticipationRow,
    RoundRow,
    SecureSumDeviceRow,
    SecureSumRow,
)
from federation.rounds.gains import Gains
from federation.rounds.progress import Progress
from federation.rounds.rollout import Rollout
from federation.rounds.server_round import ClientStatus, Round, RoundPhase
from gaitway.logs import about

log = logging.getLogger(__name__)

ENDED = (RoundPhase.PUBLISHED, RoundPhase.FAILED)
OFFLINE_STATES = ("offline", "collecting")
_NAMED = 20
"""Devices of a cohort that the journal names; the listing has them all."""


def table_of(rows: type[Base]) -> Table:
    """Return the table behind a class of rows."""
    return cast(Table, rows.__table__)


_ADD_EVENT, ADD_PARTICIPATIONS = insert(table_of(EventRow)), insert(table_of(ParticipationRow))
_ROUNDS, _PARTS = table_of(RoundRow), table_of(ParticipationRow)
_SET_ROUND = update(_ROUNDS).where(_ROUNDS.c.id == bindparam("row_id"))
_SET_PART = update(_PARTS).where(
    _PARTS.c.round_id == bindparam("row_id"), _PARTS.c.device_id == bindparam("device_row_id")
)


Chosen = TypeVar("Chosen")
State = TypeVar("State", Round, Rollout)


class Named(Protocol):
    """A row, or what was read of it."""

    @property
    def id(self) -> Any:
        """Its key."""

    @property
    def name(self) -> Any:
        """Its name."""


def put(session: Session, statement: Executable, values: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Write rows without making objects of them, which a busy server cannot afford for each message."""
    session.connection().execute(statement, values)


def journal(
    session: Session, federation: Named, kind: str, *, round_number: int = 0, device: str = "", detail: str = ""
) -> None:
    """Write an event row and the same line to the log.

    Raises:
        ValueError: if the table of kinds does not have this one.
    """
    if kind not in EVENT_KINDS:
        raise ValueError(f"event kind {kind!r}: expected one of EVENT_KINDS; say there what it means")
    extra = about(federation=federation.name, round=round_number, device=device)
    log.info("%s", f"{kind} {detail}".rstrip(), extra=extra)
    put(
        session,
        _ADD_EVENT,
        {
            "federation_id": federation.id,
            "kind": kind,
            "round_number": round_number,
            "device": device,
            "detail": detail,
            "created_at": time.time(),
        },
    )


def find_federation(session: Session, name: str) -> FederationRow | None:
    """Find a federation."""
    return session.scalar(select(FederationRow).where(FederationRow.name == name))


def find_device(session: Session, federation: FederationRow, name: str) -> DeviceRow | None:
    """Find a device of a federation."""
    return session.scalar(select(DeviceRow).where(DeviceRow.federation_id == federation.id, DeviceRow.name == name))


def count_online(
    session: Session,
    federation: FederationRow,
    tags: Sequence[str] = (),
    *,
    resting: int = 0,
    at: float | None = None,
) -> int:
    """Count the devices that could train now; with tags, those in one of these groups.

    Of a masked federation only those with a key could.

    resting: those whose updates are not in so many of the last published rounds; at: those
    that are not left out then (`devices.presence`).
    """
    wanted = could_train(federation, tags, resting=resting, at=at)
    return session.scalars(select(func.count()).select_from(DeviceRow).where(*wanted)).one()


def online_devices(
    session: Session,
    federation: FederationRow,
    tags: Sequence[str] = (),
    *,
    resting: int = 0,
    at: float | None = None,
) -> dict[str, DeviceRow]:
    """Return the devices that could train now, by name; with the same choice as `count_online`."""
    wanted = could_train(federation, tags, resting=resting, at=at)
    return {row.name: row for row in session.scalars(select(DeviceRow).where(*wanted))}


def could_train(
    federation: FederationRow,
    tags: Sequence[str] = (),
    *,
    resting: int = 0,
    at: float | None = None,
) -> list[ColumnElement[bool]]:
    """Return the conditions on the rows of devices that could train now; with the same choice as `count_online`."""
    wanted = _willing(federation, tags)
    if at is not None:
        wanted.append(or_(DeviceRow.left_out_until.is_(None), DeviceRow.left_out_until <= at))
    if federation.kind.masked:
        wanted += [DeviceRow.enrolment == "approved", DeviceRow.public_key.is_not(None)]
        if federation.plan.get("secure", {}).get("voucher"):
            wanted += [DeviceRow.voucher != "", DeviceRow.voucher_expires_at > time.time()]
    if resting:
        published = (RoundRow.federation_id == federation.id, RoundRow.phase == RoundPhase.PUBLISHED)
        last = select(RoundRow.id).where(*published).order_by(RoundRow.number.desc()).limit(resting)
        used = (ParticipationRow.round_id.in_(last), ParticipationRow.outcome == ClientStatus.RECEIVED)
        wanted.append(DeviceRow.id.not_in(select(ParticipationRow.device_id).where(*used)))
    return wanted


def count_unknown(session: Session, federation: FederationRow, tags: Sequence[str] = ()) -> int:
    """Count the devices that are online, and of whom a masked federation has no key."""
    wanted = _willing(federation, tags)
    online = session.scalars(select(func.count()).select_from(DeviceRow).where(*wanted)).one()
    return online - count_online(session, federation, tags)


def _willing(federation: FederationRow, tags: Sequence[str]) -> list[ColumnElement[bool]]:
    wanted = [
        DeviceRow.federation_id == federation.id,
        DeviceRow.state.not_in(OFFLINE_STATES),
        DeviceRow.suspended_at.is_(None),
        DeviceRow.plan_refusal == "",
    ]
    if tags:
        wanted.append(DeviceRow.id.in_(select(DeviceTagRow.device_id).where(DeviceTagRow.tag.in_(tags))))
    return wanted


def open_round(session: Session, federation: FederationRow) -> RoundRow | None:
    """Return the round that has not ended, if there is one; there is never more than one."""
    return session.scalar(select(RoundRow).where(RoundRow.federation_id == federation.id, RoundRow.phase.not_in(ENDED)))


def find_round(session: Session, federation: FederationRow, number: int) -> RoundRow | None:
    """Find a round."""
    return session.scalar(select(RoundRow).where(RoundRow.federation_id == federation.id, RoundRow.number == number))


def last_number(session: Session, federation: FederationRow) -> int:
    """Return the number of the latest round, 0 before the first."""
    found = session.scalar(select(func.max(RoundRow.number)).where(RoundRow.federation_id == federation.id))
    return found or 0


def last_ended(session: Session, federation: FederationRow) -> RoundRow | None:
    """Return the latest round that has ended, if there is one."""
    query = select(RoundRow).where(RoundRow.federation_id == federation.id, RoundRow.phase.in_(ENDED))
    return session.scalar(query.order_by(RoundRow.number.desc()).limit(1))


def published_rounds(session: Session, federation: FederationRow) -> int:
    """Count the rounds that were published: each has made the next version of the model; the initial one is 0."""
    newest = select(func.max(ModelVersionRow.version)).where(ModelVersionRow.federation_id == federation.id)
    return session.scalar(newest) or 0


def progress(session: Session, federation: FederationRow) -> Progress:
    """Return how far a federation is, its open round left aside, at a cost that does not grow with its rounds.

    A round whose secure sum failed, and has narrowed down who is to blame, doesn't count as failed in a row.
    """
    newest = select(ModelVersionRow.version, ModelVersionRow.round_number).where(
        ModelVersionRow.federation_id == federation.id
    )
    version, published_in = session.execute(newest.order_by(ModelVersionRow.version.desc()).limit(1)).one()
    ended = select(RoundRow.number).where(RoundRow.federation_id == federation.id, RoundRow.phase.in_(ENDED))
    last = session.scalar(ended.order_by(RoundRow.number.desc()).limit(1)) or 0
    if last == published_in:
        return Progress(version, 0)
    since = (RoundRow.federation_id == federation.id, RoundRow.number > published_in, RoundRow.phase.in_(ENDED))
    narrower = select(func.count()).select_from(SecureSumRow).join(RoundRow, RoundRow.id == SecureSumRow.round_id)
    found = session.scalar(narrower.where(*since, SecureSumRow.retry.contains('"is_narrower":true'))) or 0
    return Progress(version, last - published_in - found)


def last_event(session: Session, federation: FederationRow) -> int:
    """Return the id of the newest event, which rises with whatever happens; 0 before the first."""
    return session.scalar(select(func.max(EventRow.id)).where(EventRow.federation_id == federation.id)) or 0


def newest_event(session: Session) -> int:
    """Return the id of the newest event of all federations; 0 before the first."""
    return session.scalar(select(func.max(EventRow.id))) or 0


def older_event() -> ColumnElement[bool]:
    """Whether an event may be deleted: all but the newest of each federation, whose id announcements count by."""
    newest = select(func.max(EventRow.id)).group_by(EventRow.federation_id)
    return EventRow.id.not_in(newest)


def current_version(session: Session, federation: FederationRow) -> ModelVersionRow:
    """Return the version that rounds start from: the one that the alias `latest` names."""
    return session.scalars(
        select(ModelVersionRow)
        .join(ModelAliasRow, ModelAliasRow.version_id == ModelVersionRow.id)
        .where(ModelAliasRow.federation_id == federation.id, ModelAliasRow.alias == "latest")
    ).one()


def newest_version(session: Session, federation: FederationRow) -> ModelVersionRow:
    """Return the version with the highest number."""
    query = select(ModelVersionRow).where(ModelVersionRow.federation_id == federation.id)
    return session.scalars(query.order_by(ModelVersionRow.version.desc()).limit(1)).one()


def version_of(session: Session, federation: FederationRow, version: int) -> ModelVersionRow:
    """Return a federation's model version, whose bytes are there.

    Raises:
        NotFoundError: if there is no such version.
        ConflictError: if it was deleted.
    """
    row = session.scalar(
        select(ModelVersionRow).where(
            ModelVersionRow.federation_id == federation.id, ModelVersionRow.version == version
        )
    )
    if row is None:
        raise NotFoundError(f"federation {federation.name!r} has no model version {version}")
    if row.deleted_at is not None:
        raise ConflictError(f"version {version} of {federation.name!r} was deleted; its bytes are gone")
    return row


def is_broadcast(session: Session, sha256: str, federation: str | None = None) -> bool:
    """Whether that blob was made for devices (of one federation): for all of them, for some in one round, or for those
    that cannot train.
    """
    connection, wanted = session.connection(), {"sha256": sha256, "federation": federation}
    return any(connection.scalar(query, wanted) is not None for query in _broadcasts(federation is not None))


@cache
def _broadcasts(of_one: bool) -> tuple[Select[int], ...]:
    """Make the queries for a broadcast to all and for one to some; every download asks them, so they are made once."""
    sha256: BindParameter[str] = bindparam("sha256")
    for_all = select(ModelVersionRow.id).where(
        ModelVersionRow.broadcast_sha256 == sha256, ModelVersionRow.deleted_at.is_(None)
    )
    deleted = exists().where(ModelVersionRow.broadcast_sha256 == sha256, ModelVersionRow.deleted_at.is_not(None))
    for_one = select(RoundRow.id).join(ParticipationRow).where(ParticipationRow.broadcast_sha256 == sha256)
    for_one = for_one.where(or_(RoundRow.phase.not_in(ENDED), ~deleted))
    of_network = select(FederationRow.id).where(
        or_(FederationRow.feature_model_sha256 == sha256, FederationRow.program_sha256 == sha256)
    )
    of_sum = select(SecureSumRow.round_id).where(SecureSumRow.shared_sha256 == sha256)
    if of_one:
        of_sum = of_sum.join(RoundRow, RoundRow.id == SecureSumRow.round_id)
        of_sum = of_sum.join(FederationRow, FederationRow.id == RoundRow.federation_id)
        for_all = for_all.join(FederationRow, FederationRow.id == ModelVersionRow.federation_id)
        for_one = for_one.join(FederationRow, FederationRow.id == RoundRow.federation_id)
        name: BindParameter[str] = bindparam("federation")
        for_all, for_one, of_network, of_sum = (
            query.where(FederationRow.name == name) for query in (for_all, for_one, of_network, of_sum)
        )
    return for_all.limit(1), for_one.limit(1), of_network.limit(1), of_sum.limit(1)


def federations_training_from(session: Session, sha256: str) -> list[str]:
    """Return the federations whose open round begins from that blob, all of its devices or some."""
    opened = (
        select(FederationRow.name)
        .join(RoundRow, RoundRow.federation_id == FederationRow.id)
        .where(RoundRow.phase.not_in(ENDED))
    )
    base = opened.join(ModelVersionRow, ModelVersionRow.id == RoundRow.base_version_id).where(
        or_(ModelVersionRow.broadcast_sha256 == sha256, ModelVersionRow.state_sha256 == sha256)
    )
    own = opened.join(ParticipationRow, ParticipationRow.round_id == RoundRow.id).where(
        ParticipationRow.broadcast_sha256 == sha256
    )
    return sorted({*session.scalars(base), *session.scalars(own.distinct())})


def add_version(
    session: Session,
    federation: FederationRow,
    number: int,
    state: Blob,
    broadcast: Blob,
    gains: Gains | None = None,
) -> int:
    """Write the model that a round made (0: the initial one), and let `latest` move on; `stable` is the first one.

    Returns the number of the version.
    """
    version = ModelVersionRow(
        federation_id=federation.id,
        version=_next_version(session, federation),
        round_number=number,
        state_sha256=state.sha256,
        broadcast_sha256=broadcast.sha256,
        broadcast_size=broadcast.size,
        created_at=time.time(),
        gains=dict(gains or {}),
    )
    session.add(version)
    session.flush()
    session.merge(ModelAliasRow(federation_id=federation.id, alias="latest", version_id=version.id))
    if session.get(ModelAliasRow, (federation.id, "stable")) is None:
        session.add(ModelAliasRow(federation_id=federation.id, alias="stable", version_id=version.id))
    return version.version


def _next_version(session: Session, federation: FederationRow) -> int:
    """Count on from the last one: an operator may have moved `latest` back."""
    last = session.scalar(
        select(func.max(ModelVersionRow.version)).where(ModelVersionRow.federation_id == federation.id)
    )
    return 0 if last is None else last + 1


def participation(session: Session, row: RoundRow, device: DeviceRow) -> ParticipationRow | None:
    """Find a device's part in a round."""
    return session.get(ParticipationRow, (row.id, device.id))


def status(part: ParticipationRow | None) -> ClientStatus:
    """Say where a device stands in a round."""
    return ClientStatus(part.outcome) if part is not None else ClientStatus.UNINVITED


def invited(session: Session, row: RoundRow) -> int:
    """Count the cohort of a round."""
    query = select(func.count()).where(ParticipationRow.round_id == row.id, ParticipationRow.invited)
    return session.scalars(query).one()


def add_round(
    session: Session,
    federation: FederationRow,
    number: int,
    cohort: list[DeviceRow],
    deadline: float | None,
) -> None:
    """Write a new round in phase `announced`, its cohort, and that they all get the present broadcast."""
    base = current_version(session, federation)
    row = RoundRow(
        federation_id=federation.id,
        base_version_id=base.id,
        deadline_at=deadline,
        opened_at=time.time(),
        closed_at=None,
        **columns_of(Round(number, pending=len(cohort))),
    )
    session.add(row)
    session.flush()
    parts = {"round_id": row.id, "invited": True, "outcome": str(ClientStatus.WAITING), "rounds_late": None}
    given = {"broadcast_sha256": base.broadcast_sha256, "broadcast_size": base.broadcast_size}
    if cohort:
        put(session, ADD_PARTICIPATIONS, [{**parts, **given, "device_id": device.id} for device in cohort])
    names = " ".join(device.name for device in cohort[:_NAMED])
    journal(session, federation, "round.announced", round_number=number, detail=f"{len(cohort)} invited: {names}"[:500])


def add_publication(session: Session, federation: FederationRow, began: Round) -> RoundRow:
    """Write a publication that has begun; it changes the newest version, wherever `latest` was moved to."""
    row = RoundRow(
        federation_id=federation.id,
        base_version_id=newest_version(session, federation).id,
        deadline_at=None,
        opened_at=time.time(),
        closed_at=None,
        **columns_of(began),
    )
    session.add(row)
    session.flush()
    return row


def read_round(row: Any, **otherwise: str) -> Round:
    """Return the round machine's state of whatever has a round's columns, but for those that are called otherwise."""
    return machine_state(Round, row, phase=RoundPhase(row.phase), **otherwise)


def machine_state(kind: type[State], row: Any, **otherwise: Any) -> State:
    """Return a state machine's state of a row, whose columns are called like its fields, but for `otherwise`."""
    read = {field.name: getattr(row, field.name) for field in fields(kind) if field.name not in otherwise}
    return kind(**read, **otherwise)


def columns_of(state: Round | Rollout) -> dict[str, Any]:
    """Return a state machine's state as the columns of its row."""
    return {**asdict(state), "phase": str(state.phase)}


def write_round(session: Session, federation: Named, row_id: int, old: Round, new: Round) -> None:
    """Write what an event changed of a round."""
    if old == new:
        return
    values = columns_of(new)
    if old.phase is not new.phase:
        values["closed_at"] = time.time() if new.phase in ENDED else None
        if new.phase in ENDED:
            _forget_sum(session, row_id, new.phase)
        journal(session, federation, f"round.{new.phase}", round_number=new.number, detail=new.reason)
    put(session, _SET_ROUND, {**values, "row_id": row_id})


def _forget_sum(session: Session, row_id: int, phase: RoundPhase) -> None:
    """Delete what devices have said in the secure sum of a round that has ended; how many they were stays."""
    session.execute(delete(SecureSumDeviceRow).where(SecureSumDeviceRow.round_id == row_id))
    left: dict[str, Any] = {"members": b"", "dealers": [], "included": b"", "total": b"", "deadline_at": None}
    left |= {"shared_sha256": None, "shared_size": None}
    if phase is RoundPhase.FAILED:
        left["stage"] = "failed"
    session.execute(update(SecureSumRow).where(SecureSumRow.round_id == row_id).values(**left))


def write_status(
    session: Session, row_id: int, device_id: int, old: ClientStatus, new: ClientStatus, rounds_late: int | None
) -> None:
    """Write where the device of an event stands now; one that was not invited comes with a late update."""
    values = {"outcome": str(new), "rounds_late": rounds_late}
    if old is ClientStatus.UNINVITED:
        put(session, ADD_PARTICIPATIONS, {**values, "round_id": row_id, "device_id": device_id, "invited": False})
    else:
        put(session, _SET_PART, {**values, "row_id": row_id, "device_row_id": device_id})


def select_devices(enrolment: str | None, tag: str | None, *, suspended: bool = False) -> Select[DeviceRow]:
    """Select devices with their groups."""
    query = select(DeviceRow).options(selectinload(DeviceRow.tag_rows))
    return of_devices(query, enrolment, tag, suspended=suspended)


def of_devices(
    query: Select[Chosen], enrolment: str | None, tag: str | None, *, suspended: bool = False
) -> Select[Chosen]:
    """Narrow a query of devices to those of an enrolment and of a group, or to those that are suspended."""
    if suspended:
        query = query.where(DeviceRow.suspended_at.is_not(None), DeviceRow.enrolment != "revoked")
    if enrolment is not None:
        query = query.where(DeviceRow.enrolment == enrolment)
    if tag is not None:
        query = query.where(DeviceRow.id.in_(select(DeviceTagRow.device_id).where(DeviceTagRow.tag == tag)))
    return query
