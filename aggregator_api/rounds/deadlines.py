"""Deadlines of open rounds, devices that are gone, and what becomes of both when the machine's clock is set."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.orm import Session

from aggregator_api.rounds.clock import MIN_CLOCK_STEP_S
from aggregator_api.storage.db.models import (
    DeviceRow,
    FederationRow,
    ParticipationRow,
    RolloutRow,
    RoundRow,
    SecureSumRow,
    UpdateRow,
)
from federation.plan import Plan
from federation.rounds.server_round import RoundPhase, silence_limit_s


def deadlines_passed(session: Session, now: float) -> list[str]:
    """Return the federations whose open round is over its deadline and has not been told."""
    query = (
        select(FederationRow.name)
        .join(RoundRow, RoundRow.federation_id == FederationRow.id)
        .where(
            RoundRow.phase == RoundPhase.COLLECTING, RoundRow.deadline_passed.is_(False), RoundRow.deadline_at <= now
        )
    )
    return list(session.scalars(query))


def devices_gone(session: Session, now: float, offline_timeout_s: float) -> list[tuple[str, str]]:
    """Return (federation, device) of those awaited that are offline for `offline_timeout_s`, or silent for too long.

    Only where no deadline of the plan ends the wait: it says for how long the operator wants to wait. One that was
    heard at a time to come was heard before the clock was set back; the caller has listened for long enough since.
    """
    without = FederationRow.plan["rounds"]["deadline_s"].as_string().is_(None)  # a batch has one of its own
    offline = DeviceRow.state == "offline"
    unheard = or_(DeviceRow.seen_at <= now - offline_timeout_s, DeviceRow.seen_at > now + offline_timeout_s)
    query = (
        select(FederationRow.name, DeviceRow.name)
        .join(DeviceRow, DeviceRow.federation_id == FederationRow.id)
        .join(ParticipationRow, ParticipationRow.device_id == DeviceRow.id)
        .join(RoundRow, RoundRow.id == ParticipationRow.round_id)
        .where(
            RoundRow.phase == RoundPhase.COLLECTING,
            or_(RoundRow.deadline_at.is_(None), without),
            ParticipationRow.outcome == "waiting",
            or_(and_(offline, unheard), RoundRow.id.in_(_overdue_rounds(session, now))),
        )
    )
    return [(federation, device) for federation, device in session.execute(query)]


def _overdue_rounds(session: Session, now: float) -> list[int]:
    """Return the open rounds without a deadline that have waited for long enough since their latest update."""
    query = (
        select(RoundRow.id, RoundRow.opened_at, func.max(UpdateRow.received_at))
        .join(UpdateRow, and_(UpdateRow.round_id == RoundRow.id, UpdateRow.status == "accepted"))
        .where(RoundRow.phase == RoundPhase.COLLECTING, RoundRow.deadline_at.is_(None))
        .group_by(RoundRow.id, RoundRow.opened_at)
    )
    rows = session.execute(query)
    return [number for number, opened, latest in rows if now - opened > silence_limit_s(latest - opened)]


def move_open_rounds(session: Session, names: Iterable[str], leap_s: float) -> None:
    """Let open rounds, stages of sums and waves of rollouts end as much later as the clock was set forwards."""
    for row in _open_rounds(session, names):
        row.opened_at += leap_s
        if row.deadline_at is not None:
            row.deadline_at += leap_s
    of_sums = select(SecureSumRow).join(RoundRow, RoundRow.id == SecureSumRow.round_id)
    for stage in session.scalars(of_sums.where(RoundRow.federation_id.in_(_ids(names)))):
        if stage.deadline_at is not None:
            stage.deadline_at += leap_s
    for rollout in session.scalars(select(RolloutRow).where(RolloutRow.federation_id.in_(_ids(names)))):
        rollout.wave_started_at += leap_s


def waits_s(plan: Plan) -> float | None:
    """Return how long a round waits for its devices; None: for all of them."""
    return plan.rounds.deadline_s or None


def cap_deadline(session: Session, federation: FederationRow, plan: Plan, now: float) -> float:
    """Set a deadline that is further away than a whole round lasts to one round from now; return by how much it moved.

    It was written before the clock was set back, while this process did not run.
    """
    moved_s = 0.0
    for row in _open_rounds(session, [federation.name]):
        latest = now + (waits_s(plan) or 0.0)
        if row.deadline_at is not None and row.deadline_at > latest + MIN_CLOCK_STEP_S:
            moved_s += row.deadline_at - latest
            row.opened_at, row.deadline_at = now, latest
    return moved_s


def _ids(names: Iterable[str]) -> Select[int]:
    return select(FederationRow.id).where(FederationRow.name.in_(list(names)))


def _open_rounds(session: Session, names: Iterable[str]) -> list[RoundRow]:
    query = select(RoundRow).where(
        RoundRow.federation_id.in_(_ids(names)), RoundRow.phase.in_((RoundPhase.ANNOUNCED, RoundPhase.COLLECTING))
    )
    return list(session.scalars(query))
