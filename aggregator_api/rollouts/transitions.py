"""Rollouts as rows, as `federation.rounds.rollout` decides; every function works inside its caller's transaction.

Rounds start from `latest`. What devices use has names of its own: `released`, the version of the last completed
rollout, and `canary`, that of the one under way. So training does not notice a rollout, nor its halt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, func, insert, select
from sqlalchemy.orm import Session

from aggregator_api.rollouts import promotion, scores
from aggregator_api.storage.db import epochs, repositories
from aggregator_api.storage.db.models import (
    DeviceRow,
    DeviceTagRow,
    FederationRow,
    ModelAliasRow,
    ModelVersionRow,
    RolloutDeviceRow,
    RolloutRow,
)
from federation.plan import RolloutSettings
from federation.protocol.messages import MAX_WITHDRAWN, BlobPointer, Offer, Release, ReleaseOrder, ReleaseReport
from federation.rounds.gains import published
from federation.rounds.promotion import Decision
from federation.rounds.rollout import (
    AdoptionAnswer,
    AnswerReceived,
    ClockTick,
    DevicesAdded,
    Event,
    Rollout,
    RolloutPhase,
    is_time,
    is_within,
    place_of,
    reach_of,
    step,
    wave_size,
)

OPEN = (RolloutPhase.ROLLING, RolloutPhase.PAUSED)
BATCH = 10_000
"""Devices that are asked at a time whether they belong to a wave."""
_ADD_DEVICE = insert(repositories.table_of(RolloutDeviceRow))


def settings_of(federation: FederationRow) -> RolloutSettings:
    """Return how a federation releases models; plans of earlier versions say nothing about it."""
    return RolloutSettings.model_validate(federation.plan.get("rollout", {}))


def under_way(session: Session, federation: FederationRow) -> RolloutRow | None:
    """Return the rollout that has not ended, if there is one; there is never more than one."""
    return session.scalar(
        select(RolloutRow).where(RolloutRow.federation_id == federation.id, RolloutRow.phase.in_(OPEN))
    )


def numbered(session: Session, federation: FederationRow, number: int) -> RolloutRow | None:
    """Find a rollout."""
    return session.scalar(
        select(RolloutRow).where(RolloutRow.federation_id == federation.id, RolloutRow.number == number)
    )


def latest(session: Session, federation: FederationRow, phase: RolloutPhase | None = None) -> RolloutRow | None:
    """Return the rollout that was started last, of all or of those in a phase."""
    query = select(RolloutRow).where(RolloutRow.federation_id == federation.id)
    if phase is not None:
        query = query.where(RolloutRow.phase == phase)
    return session.scalar(query.order_by(RolloutRow.number.desc()).limit(1))


# ---- what happens


def start(
    session: Session,
    federation: FederationRow,
    version: ModelVersionRow,
    now: float,
    changed: Mapping[str, Any] | None = None,
    forced: str = "",
) -> RolloutRow:
    """Begin to release a version, with settings other than the plan's where they are given.

    For the reason `forced` it goes on and is completed whatever is measured of it; failures halt it all the same.

    The caller has seen that no other rollout is under way.
    """
    last, settings = latest(session, federation), settings_of(federation)
    settings = settings.model_copy(update=dict(changed or {}))
    row = RolloutRow(
        federation_id=federation.id,
        number=last.number + 1 if last else 1,
        version_id=version.id,
        settings=settings.model_dump(mode="json"),
        serial=_next_serial(session),
        last_checked_device_id=0,
        reach=0,
        forced=forced,
        started_at=now,
        ended_at=None,
        **repositories.columns_of(Rollout(wave_started_at=now)),
    )
    session.add(row)
    session.flush()
    session.refresh(row, ["version"])
    _name_versions(session, federation)
    _extend(session, row)
    _add_new_devices(session, federation, row, now)
    _note(session, federation, row, "started")
    return row


def start_next(session: Session, federation: FederationRow, now: float) -> None:
    """Begin with the newest version, where versions are released automatically, one after another.

    After a halt it is for the operator to begin again, and with a version that is measured to be worse, too.
    """
    if settings_of(federation).mode != "automatic":
        return
    last, version = latest(session, federation), repositories.current_version(session, federation)
    done = last is None or last.phase == RolloutPhase.COMPLETED
    new = version.round_number > 0 and (last is None or version.version > last.version.version)
    if done and new and known_worse(session, federation, version) is None:
        start(session, federation, version, now)


def is_due(session: Session, row: RolloutRow, now: float) -> bool:
    """Whether time or new devices change a rollout."""
    current = _read(row)
    if step(_settings(row), current, _tick(session, row, now)) != current:
        return True
    return session.execute(_unasked(row).limit(1)).first() is not None or _is_short(session, row)


def advance(session: Session, federation: FederationRow, row: RolloutRow, now: float) -> bool:
    """Take new devices into the wave, and advance it if it is time; returns whether devices must be told."""
    new = _add_new_devices(session, federation, row, now)
    is_by_tag = bool(new and _tags(row))  # within the reach devices know it themselves
    if _is_short(session, row) and _extend(session, row):
        _add_new_devices(session, federation, row, now)
        row.serial, is_by_tag = _next_serial(session), True
        session.flush()
    return apply(session, federation, row, _tick(session, row, now), now) or is_by_tag


def known_worse(session: Session, federation: FederationRow, version: ModelVersionRow) -> str | None:
    """Say why a version should not be released: it is measured to be worse than what is; None where it is not."""
    released = latest(session, federation, RolloutPhase.COMPLETED)
    present = released.version if released else promotion.named_version(session, federation, "stable")
    if present is None or present.id == version.id:
        return None
    found = promotion.verdict_of(session, federation, version, present)
    return found.reason if found.decision is Decision.WORSE else None


def able_devices(session: Session, federation: FederationRow) -> int:
    """Count the devices that a rollout can give a model to."""
    may = (DeviceRow.federation_id == federation.id, DeviceRow.enrolment.in_(("open", "approved")))
    return session.scalar(select(func.count(DeviceRow.id)).where(*may)) or 0


def _tick(session: Session, row: RolloutRow, now: float) -> ClockTick:
    """Say what time it is, and where that ends a wave what is measured of the version."""
    if row.forced or not is_time(_settings(row), _read(row), now):
        return ClockTick(now)
    federation = session.get_one(FederationRow, row.federation_id)
    if (worse := known_worse(session, federation, row.version)) is not None:
        return ClockTick(now, worse=worse)
    released = latest(session, federation, RolloutPhase.COMPLETED)
    present = released.version if released and released.version_id != row.version_id else None
    found = promotion.verdict_of(session, federation, row.version, present)
    return ClockTick(now, unproven="" if found.decision is Decision.BETTER else f"not completed yet: {found.reason}")


def record_answer(session: Session, federation: FederationRow, name: str, report: ReleaseReport, now: float) -> bool:
    """Note what a device says about a rollout; a repetition changes nothing. Returns whether devices must be told."""
    row, device = numbered(session, federation, report.rollout), repositories.find_device(session, federation, name)
    server_state = (federation.instance, epochs.current(session).epoch)
    if row is None or device is None or (report.instance, report.epoch) != server_state:
        return False
    member = session.get(RolloutDeviceRow, (row.id, device.id))
    if member is None:
        if not is_within(name, row.version.version, row.reach):
            return False  # it was not asked
        member = RolloutDeviceRow(**_pending(row, device.id, now))
        session.add(member)
        apply(session, federation, row, DevicesAdded(1), now)
    before, member.answer = AdoptionAnswer(member.answer), report.answer
    if member.answer == before:
        return False
    member.score, member.reason, member.answered_at = report.score, report.reason, now
    _note(session, federation, row, report.answer, device=name, detail=report.reason)
    return apply(session, federation, row, AnswerReceived(before, AdoptionAnswer(report.answer)), now)


def apply(session: Session, federation: FederationRow, row: RolloutRow, event: Event, now: float) -> bool:
    """Apply an event and write what follows from it; returns whether devices must be told.

    Raises:
        RolloutError: if the operator's wish cannot be met now.
    """
    before = _read(row)
    after = step(_settings(row), before, event)
    for column, value in repositories.columns_of(after).items():
        setattr(row, column, value)
    if after.wave != before.wave:
        row.last_checked_device_id = 0
        _extend(session, row)
        _add_new_devices(session, federation, row, now)
        _note(session, federation, row, "wave")
    if after.phase is not before.phase:
        row.ended_at = None if after.phase in OPEN else now
        _note(session, federation, row, after.phase, detail=after.reason)
    ended = after.phase is not before.phase and after.phase not in OPEN
    if ended or after.wave != before.wave:
        row.serial = _next_serial(session)
        session.flush()
    if ended:
        _name_versions(session, federation)
        start_next(session, federation, now)
    return ended or after.wave != before.wave


# ---- what is said


def order(session: Session, federation: FederationRow) -> ReleaseOrder | None:
    """Say which models devices are to use; None where they choose for themselves, or before the first rollout."""
    last = latest(session, federation)
    if last is None or not settings_of(federation).used:
        return None
    candidate = under_way(session, federation)
    halted = select(RolloutRow.number).where(
        RolloutRow.federation_id == federation.id, RolloutRow.phase == RolloutPhase.HALTED
    )
    return ReleaseOrder(
        serial=newest_serial(session, federation),
        released=_release(session, federation, latest(session, federation, RolloutPhase.COMPLETED)),
        candidate=_release(session, federation, candidate),
        share_millionths=candidate.reach if candidate else 0,
        withdrawn=tuple(session.scalars(halted.order_by(RolloutRow.number.desc()).limit(MAX_WITHDRAWN))),
    )


def offers(session: Session, federation: FederationRow, device: str | None = None) -> Iterator[tuple[str, Offer]]:
    """Yield the offer to each device, or that one, that came in with a wave of groups and has not answered yet."""
    row = under_way(session, federation)
    waves = [wave for wave in range(row.wave + 1) if _settings(row).tags_of(wave)] if row else []
    if row is None or not waves:
        return
    offer = Offer(instance=federation.instance, epoch=epochs.current(session).epoch, rollout=row.number)
    awaited = select(DeviceRow.name).join(RolloutDeviceRow, RolloutDeviceRow.device_id == DeviceRow.id)
    awaited = awaited.where(RolloutDeviceRow.rollout_id == row.id, RolloutDeviceRow.wave.in_(waves))
    if device is not None:
        awaited = awaited.where(DeviceRow.name == device)
    for name in session.scalars(
        awaited.where(RolloutDeviceRow.answer == AdoptionAnswer.PENDING).order_by(DeviceRow.id)
    ):
        yield name, offer


def newest_serial(session: Session, federation: FederationRow) -> int:
    """Return the serial of the last change of a federation's order; 0 if nothing was ever released."""
    query = select(func.max(RolloutRow.serial)).where(RolloutRow.federation_id == federation.id)
    return session.scalar(query) or 0


def _release(session: Session, federation: FederationRow, row: RolloutRow | None) -> Release | None:
    if row is None:
        return None
    version, sha256 = row.version, row.version.broadcast_sha256
    score = scores.score_of(session, federation, version)
    about = {"sha256": sha256, "size": version.broadcast_size, "url": f"/v1/blobs/{sha256}"}
    model = BlobPointer.model_validate({**about, "score": score, "gains": published(version.gains)})
    return Release(rollout=row.number, version=version.version, round=version.round_number, model=model)


# ---- rows


def _add_new_devices(session: Session, federation: FederationRow, row: RolloutRow, now: float) -> int:
    """Take into the wave who belongs to it and is new, to the wave or to the federation; returns how many."""
    version, all_asked, enlisted = row.version.version, bool(_tags(row)), 0
    while device_ids := session.execute(_unasked(row).limit(BATCH)).all():
        new = [
            _pending(row, device.id, now)
            for device in device_ids
            if all_asked or is_within(device.name, version, row.reach)
        ]
        enlisted += len(new)
        if new:
            repositories.put(session, _ADD_DEVICE, new)
        row.last_checked_device_id = device_ids[-1].id
        apply(session, federation, row, DevicesAdded(len(new)), now)
    return enlisted


def _extend(session: Session, row: RolloutRow) -> bool:
    """Let the rollout reach as many of the present devices as its wave is to have; returns whether that changed."""
    if _tags(row):
        return False  # a wave of groups leaves the reach as it was before
    before, share = row.reach, _settings(row).share_of(row.wave)
    places = [place_of(name, row.version.version) for name in session.scalars(_devices(row, DeviceRow.name))]
    row.reach = max(before, reach_of(places, share))  # whoever has the model keeps it
    if row.reach != before:
        row.last_checked_device_id = 0  # who was not within may be now
    return row.reach != before


def _is_short(session: Session, row: RolloutRow) -> bool:
    """Whether a wave of a share has fewer devices than it should: some were deleted, or many have enrolled."""
    if _tags(row) or row.phase != RolloutPhase.ROLLING:
        return False
    present = able_devices(session, session.get_one(FederationRow, row.federation_id))
    return row.members < wave_size(_settings(row).share_of(row.wave), present)


def _devices(row: RolloutRow, what: Any) -> Select[Any]:
    """Select something of the devices that a rollout can give a model to."""
    may = (DeviceRow.federation_id == row.federation_id, DeviceRow.enrolment.in_(("open", "approved")))
    return select(what).where(*may)


def _unasked(row: RolloutRow) -> Select[int, str]:
    """Select the devices of the federation that were not looked at since the wave began, and do not belong to it.

    Of a wave of groups: those in one of them, as devices that are looked at already may come into a group.
    """
    new: ColumnElement[bool] = DeviceRow.id > row.last_checked_device_id
    if tags := _tags(row):
        new = DeviceRow.id.in_(select(DeviceTagRow.device_id).where(DeviceTagRow.tag.in_(tags)))
    asked_before = select(RolloutDeviceRow.device_id).where(RolloutDeviceRow.rollout_id == row.id)
    return (
        select(DeviceRow.id, DeviceRow.name)
        .where(
            DeviceRow.federation_id == row.federation_id,
            new,
            DeviceRow.enrolment.in_(("open", "approved")),
            DeviceRow.id.not_in(asked_before),
        )
        .order_by(DeviceRow.id)
    )


def _pending(row: RolloutRow, device_id: int, now: float) -> dict[str, Any]:
    answer = {"answer": str(AdoptionAnswer.PENDING), "score": None, "reason": "", "answered_at": None}
    return {"rollout_id": row.id, "device_id": device_id, "wave": row.wave, "notified_at": now, **answer}


def _name_versions(session: Session, federation: FederationRow) -> None:
    named = {
        "released": latest(session, federation, RolloutPhase.COMPLETED),
        "canary": under_way(session, federation),
    }
    for alias, row in named.items():
        if row is not None:
            session.merge(ModelAliasRow(federation_id=federation.id, alias=alias, version_id=row.version_id))
        else:
            gone = (ModelAliasRow.federation_id == federation.id, ModelAliasRow.alias == alias)
            session.execute(delete(ModelAliasRow).where(*gone))


def _note(
    session: Session, federation: FederationRow, row: RolloutRow, kind: str, *, device: str = "", detail: str = ""
) -> None:
    version, tags = row.version, _tags(row)
    words = f"rollout {row.number}, version {version.version}"
    if not device:
        to = f"group {' or '.join(tags)}" if tags else f"{100 * _settings(row).share_of(row.wave):g} % of the devices"
        words += f": {to}, {row.members} told, {row.successes} took it or work as well, {row.failures} failed"
    detail = f"{words}; {detail}" if detail else words
    repositories.journal(
        session, federation, f"rollout.{kind}", round_number=version.round_number, device=device, detail=detail
    )


def _next_serial(session: Session) -> int:
    """Count over all federations, as devices outlive a federation."""
    return (session.scalar(select(func.max(RolloutRow.serial))) or 0) + 1


def _settings(row: RolloutRow) -> RolloutSettings:
    return RolloutSettings.model_validate(row.settings)


def _tags(row: RolloutRow) -> tuple[str, ...]:
    return _settings(row).tags_of(row.wave)


def _read(row: RolloutRow) -> Rollout:
    return repositories.machine_state(Rollout, row, phase=RolloutPhase(row.phase))
