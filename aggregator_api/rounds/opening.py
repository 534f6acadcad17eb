"""Opens rounds: draws the cohort, and assigns waiting updates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.devices import contributions, presence, suspension
from aggregator_api.rounds import deadlines, secure_rounds, sum_retries
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import Blob, DeviceRow, FederationRow, RoundRow, UpdateRow
from federation.methods import sums_in_rounds
from federation.plan import Plan
from federation.rounds.progress import Progress
from federation.rounds.server_round import (
    Action,
    Event,
    Opened,
    RoundPhase,
    Step,
    UpdateArrived,
    quorum,
    resting_rounds,
    sample_cohort,
)
from federation.secure_sums.retries import Retry

Transition = Callable[[Event], Step | None]
"""Applies an event to the open round, inside the caller's transaction."""


def due(session: Session, federation: FederationRow, plan: Plan, now: float) -> bool:
    """Whether `draw` has something to write: the next round, or that there is none.

    Devices are counted and not read: while they come one by one, each of them asks this.
    """
    if federation.status != "running" or repositories.open_round(session, federation) is not None:
        return False
    if _is_finished(session, federation, plan):
        return True
    choice = sum_retries.choose(session, federation, plan, now) if federation.kind.masked else None
    if choice is not None and choice.is_group:
        return True
    goes_on = choice is not None and sum_retries.goes_on_at_once(session, federation)
    if plan.rounds.interval_s and not goes_on and _rests(session, federation, plan.rounds.interval_s, now):
        return False
    left_out = choice.retry.left_out if choice is not None else ()
    if sums_in_rounds(plan) and not _has_changes(session, federation, plan, now, left_out):
        return False
    if choice is not None:
        return len(choice.devices) >= choice.needed
    online = partial(
        repositories.count_online,
        session,
        federation,
        plan.rounds.cohort_tags,
        resting=resting_rounds(plan.rounds),
    )
    # for those that are left out or suspended the others don't wait, as long as they are a quorum
    return online() >= suspension.needed_devices(session, federation, plan) and online(at=now) >= quorum(plan)


def _has_changes(
    session: Session, federation: FederationRow, plan: Plan, now: float, left_out: Collection[int]
) -> bool:
    """Whether the sum of all who may add would differ from the last one by enough devices to hide each of them."""
    online = repositories.could_train(federation, plan.rounds.cohort_tags, at=now)
    online.append(DeviceRow.id.not_in(left_out))
    return contributions.counts_online(session, federation, online).changed >= plan.secure.min_devices


def _is_finished(session: Session, federation: FederationRow, plan: Plan) -> bool:
    if sums_in_rounds(plan):
        return False
    return Progress(repositories.published_rounds(session, federation)).is_finished(plan.rounds)


def rested(session: Session, plan_of: Callable[[FederationRow], Plan], now: float) -> list[str]:
    """Return the running federations whose next round is due by the time alone, and have enough devices."""
    query = select(FederationRow).where(FederationRow.status == "running")
    waiting = ((row, plan_of(row)) for row in session.scalars(query))
    timed = (
        (row, plan) for row, plan in waiting if plan.rounds.interval_s or presence.has_returning(session, row, now)
    )
    return [row.name for row, plan in timed if due(session, row, plan, now)]


def _rests(session: Session, federation: FederationRow, interval_s: float, now: float) -> bool:
    """Whether the last round was opened less than the interval ago; one of a time to come tells nothing."""
    last = select(RoundRow.opened_at).where(RoundRow.federation_id == federation.id).order_by(RoundRow.number.desc())
    opened = session.scalar(last.limit(1))
    return opened is not None and 0 <= now - opened < interval_s


def draw(session: Session, federation: FederationRow, plan: Plan, now: float) -> bool:
    """Write the next round and its cohort if there are enough devices, or that the federation has finished.

    Returns whether a round was written.
    """
    if not due(session, federation, plan, now):
        return False
    number = repositories.last_number(session, federation) + 1
    if _is_finished(session, federation, plan):
        federation.status = "finished"
        repositories.journal(session, federation, "federation.finished", round_number=number - 1)
        return False
    choice = sum_retries.choose(session, federation, plan, now) if federation.kind.masked else None
    if choice is not None and choice.is_group:
        _write(session, federation, plan, list(choice.devices.values()), now, choice.retry)
        return True
    online = repositories.online_devices(
        session,
        federation,
        plan.rounds.cohort_tags,
        resting=resting_rounds(plan.rounds),
        at=now,
    )
    if choice is not None:
        online = dict(choice.devices)
    rounds = secure_rounds.bounded(plan.rounds, plan.secure)
    cohort = sample_cohort(
        rounds, online, seed=plan.training.seed, round_number=number, examples=_weights(plan, online)
    )
    retry = choice.retry if choice is not None else Retry()
    _write(session, federation, plan, [online[name] for name in cohort], now, retry)
    return True


def _write(
    session: Session, federation: FederationRow, plan: Plan, cohort: list[DeviceRow], now: float, retry: Retry
) -> None:
    """Write the next round and its cohort, and what a secure sum asks of it."""
    waits_s = deadlines.waits_s(plan)
    deadline, number = now + waits_s if waits_s else None, repositories.last_number(session, federation) + 1
    repositories.add_round(session, federation, number, cohort, deadline)
    if federation.kind.masked:
        secure_rounds.begin(session, federation, plan.secure, cohort, retry)


def record_broadcasts(row: RoundRow, broadcasts: Mapping[str, Blob]) -> None:
    """Note what each device of the cohort gets, where it is not the same for all."""
    for part in row.participations:
        part.broadcast_sha256, part.broadcast_size = broadcasts[part.device.name]


def begin(session: Session, federation: FederationRow, apply: Transition) -> tuple[Action, ...]:
    """Open the written round, and hand it the updates that were deferred to it; a device's newest one first."""
    opened = apply(Opened())
    row = repositories.open_round(session, federation)
    if opened is None or row is None:
        return ()
    actions = list(opened.actions)
    for update in _deferred(session, federation):
        if row.phase != RoundPhase.COLLECTING:
            break  # this round has enough: the rest waits for another
        result = apply(UpdateArrived(update.device.name, update.base_round))
        actions += _settle(session, federation, row, update, result) if result else ()
    return tuple(actions)


def _settle(
    session: Session, federation: FederationRow, row: RoundRow, update: UpdateRow, result: Step
) -> tuple[Action, ...]:
    name = update.device.name
    if Action.ACCEPT in result.actions:
        update.status, update.round_id = "accepted", row.id
        repositories.journal(session, federation, "update.used", round_number=row.number, device=name)
        return result.actions
    update.status, update.reason = "refused", result.reason
    repositories.journal(
        session, federation, "update.refused", round_number=row.number, device=name, detail=result.reason
    )
    return ()


def _deferred(session: Session, federation: FederationRow) -> list[UpdateRow]:
    query = select(UpdateRow).where(UpdateRow.federation_id == federation.id, UpdateRow.status == "deferred")
    return list(session.scalars(query.order_by(UpdateRow.base_round.desc(), UpdateRow.id)))


def _weights(plan: Plan, online: Mapping[str, DeviceRow]) -> dict[str, int] | None:
    """Return what devices said about how many examples they have; one that has not said counts like their mean."""
    if plan.rounds.sampling != "examples":
        return None
    counts = [row.examples for row in online.values() if row.examples]
    typical = round(sum(counts) / len(counts)) if counts else 1
    return {name: row.examples or typical for name, row in online.items()}
