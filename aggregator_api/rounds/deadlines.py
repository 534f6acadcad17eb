"""The monotonic clock of rounds, and their deadlines.

Time for deadlines and waits: it runs evenly while the machine's clock is set, as by NTP after a start.
Deadlines are kept in SQL as Unix times, which a person reads and another process understands. So the rows of open
rounds are moved along when the clock is set, and a deadline that was written under another clock is brought into reach.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.orm import Session

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

MIN_CLOCK_STEP_S = 1.0
"""The clock was set if it is off by more than this; what is less is slewed away, and does no harm."""


class SteadyClock:
    """Unix time as the machine had it at the start, and since then by the monotonic clock."""

    def __init__(self) -> None:
        self._ahead_s = time.time() - time.monotonic()
        self.followed_at: float | None = None
        """When (monotonic) the machine's clock was set last; None: never, as far as this process has seen."""

    def __call__(self) -> float:
        """Return the time in seconds since 1970."""
        return time.monotonic() + self._ahead_s

    def leap_s(self) -> float:
        """Return by how much the machine's clock was set forwards, or (below 0) back; 0 if it was not."""
        leap_s = time.time() - self()
        return leap_s if abs(leap_s) > MIN_CLOCK_STEP_S else 0.0

    def follow(self, leap_s: float) -> None:
        """Continue from the machine's time."""
        self._ahead_s += leap_s
        self.followed_at = time.monotonic()

    def was_stable_for(self, seconds: float) -> bool:
        """Whether the clock was not set in the last so many seconds, as far as this process has seen."""
        if self.leap_s():
            return False
        return self.followed_at is None or time.monotonic() - self.followed_at >= seconds


def deadlines_passed(session: Session, now: float) -> list[str]:
    """Return the federations whose open round has passed its deadline without an event yet."""
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
