"""Which devices are online, silent, or present twice.

**After a restart** devices report their status again; those that don't are offline. Devices have the broker retain
nothing, so a server that comes back, or takes a federation over, asks: its announcement, which is retained, carries a
new random text. A last will that was lost meanwhile is made up for by silence.

**Silent devices** are left out of rounds for a while. A round misses them at its deadline. Without one, it misses those
that it gives up (`rounds.deadlines.devices_gone`). After MAX_MISSED rounds in a row no round draws a device for
FIRST_REST_S, after each further one for twice as long, up to MAX_REST_S. Then it is drawn again by itself, and an
update that counts resets the count. The device keeps its keys, its model and its releases.

**Two programs under one name**, such as a copied card: a broker lets one in and cuts the other off, which comes back
and does the same. Every run of an agent draws a session, a random text that its statuses carry with a rising number.
A restart has a new one, and the old one is not heard again; so a session that was replaced and says something new is
the sign of two programs. Messages that a broker repeats after a reconnect carry a number that is known. The first
program stays, and the server tells the other to stop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow, FederationRow, ParticipationRow, RoundRow
from federation.rounds.server_round import ClientStatus

ANSWER_S = 60.0
"""In which a device answers that is there; it takes two seconds, and longer over a bad network."""


class PresenceCheck:
    """Presence checks of one process; its coordinator's lock orders them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, str] = {}
        self._asked: dict[str, tuple[float, float]] = {}  # on this clock, and as the rows tell the time

    def token_of(self, federation: str) -> str:
        """Return what its announcement carries; empty before the first."""
        return self._calls.get(federation, "")

    def begin(self, federation: str) -> None:
        """Ask the devices of a federation with its next announcement."""
        self._calls[federation] = uuid4().hex
        self._asked[federation] = self._clock(), time.time()

    def drop(self) -> None:
        """Drop pending presence checks, so that silence isn't taken for an answer."""
        self._asked.clear()

    def over(self) -> list[tuple[str, float]]:
        """Return each federation that was asked long enough ago, once, and when that was (Unix time)."""
        now = self._clock()
        due = [(name, question[1]) for name, question in self._asked.items() if now - question[0] >= ANSWER_S]
        for name, _ in due:
            del self._asked[name]
        return due


def mark_unresponsive(session: Session, federation: str, asked_at: float) -> None:
    """Mark devices as offline that were silent since then."""
    row = repositories.find_federation(session, federation)
    if row is None:
        return
    query = select(DeviceRow).where(
        DeviceRow.federation_id == row.id, DeviceRow.state != "offline", DeviceRow.seen_at < asked_at
    )
    for device in session.scalars(query):
        device.state = "offline"
        repositories.journal(
            session, row, "device.offline", device=device.name, detail="it didn't answer the presence check"
        )


MAX_MISSED = 3
FIRST_REST_S, MAX_REST_S = 120.0, 3600.0


def judge_deadline(session: Session, federation: FederationRow, row: RoundRow, now: float) -> bool:
    """Count a round whose deadline has passed against those who are still awaited; return whether one is left out."""
    awaited = select(ParticipationRow.device_id).where(
        ParticipationRow.round_id == row.id,
        ParticipationRow.invited.is_(True),
        ParticipationRow.outcome == ClientStatus.WAITING,
    )
    devices = session.scalars(select(DeviceRow).where(DeviceRow.id.in_(awaited)).order_by(DeviceRow.name))
    left_out = [count_missed(session, federation, row, device, now) for device in devices]
    return any(left_out)


def count_missed(session: Session, federation: FederationRow, row: RoundRow, device: DeviceRow, now: float) -> bool:
    """Count a round against a device that did not answer; return whether it is left out now."""
    device.missed_rounds += 1
    if device.missed_rounds < MAX_MISSED:
        return False
    rest_s = min(MAX_REST_S, FIRST_REST_S * 2.0 ** min(device.missed_rounds - MAX_MISSED, 16))
    device.left_out_until = now + rest_s
    detail = f"it missed {device.missed_rounds} rounds in a row; it can be drawn again in {rest_s:.0f} s"
    repositories.journal(
        session, federation, "device.left_out", round_number=row.number, device=device.name, detail=detail
    )
    return True


def forgive(session: Session, row: RoundRow) -> None:
    """Reset the count of devices whose updates a round has."""
    heard = select(ParticipationRow.device_id).where(
        ParticipationRow.round_id == row.id, ParticipationRow.outcome == ClientStatus.RECEIVED
    )
    counted = or_(DeviceRow.missed_rounds > 0, DeviceRow.left_out_until.is_not(None))
    silent = update(DeviceRow).where(DeviceRow.id.in_(heard), counted)
    session.execute(silent.values(missed_rounds=0, left_out_until=None))


def count_left_out(session: Session, federation: FederationRow, now: float) -> int:
    """Count the devices that are online and left out now."""
    online = (DeviceRow.federation_id == federation.id, DeviceRow.state.not_in(repositories.OFFLINE_STATES))
    return (
        session.scalar(select(func.count()).select_from(DeviceRow).where(*online, DeviceRow.left_out_until > now)) or 0
    )


def has_returning(session: Session, federation: FederationRow, now: float) -> bool:
    """Whether a device may be drawn again that was left out: no message of its own says so."""
    returning = (DeviceRow.federation_id == federation.id, DeviceRow.left_out_until <= now)
    return session.scalar(select(DeviceRow.id).where(*returning).limit(1)) is not None


MAX_SESSIONS = 8
"""That are remembered of one device."""
MAX_DEVICES = 50_000
"""That are remembered; beyond it, those that were heard longest ago are forgotten."""
WINDOW_S = 600.0
RETURNS = 2
"""Of replaced sessions within the window: one could be a message that overtook another in a crowded broker."""


class CloneVerdict(NamedTuple):
    """What follows from a status."""

    cloned: bool = False  # this status was the proof
    stop: bool = False  # its sender came later than another that is there


@dataclass
class _Device:
    sessions: dict[str, int] = field(default_factory=dict)  # in the order of their first status; its last number
    current: str = ""
    notified_sessions: set[str] = field(default_factory=set)
    returns: list[float] = field(default_factory=list)
    cloned: bool = False


class CloneDetector:
    """What one server process has heard since it started; only the thread that handles messages calls it."""

    def __init__(self) -> None:
        self._devices: OrderedDict[tuple[str, str], _Device] = OrderedDict()

    def observe(self, federation: str, device: str, session: str, number: int, now: float) -> CloneVerdict:
        """Take the session and number of a status, at `now` in seconds on a clock that does not jump."""
        if not session:
            return CloneVerdict()  # a last will, or another program than our agent
        seen = self._seen(federation, device)
        if number <= seen.sessions.get(session, 0):
            return CloneVerdict()
        before, seen.current = seen.current, session
        is_back = session in seen.sessions and session != before
        seen.sessions[session] = number
        if not is_back:
            _forget_oldest(seen)
            return CloneVerdict()
        seen.returns = [moment for moment in seen.returns if now - moment < WINDOW_S] + [now]
        proven = not seen.cloned and len(seen.returns) >= RETURNS
        seen.cloned = seen.cloned or proven
        stop = (
            seen.cloned
            and before not in seen.notified_sessions
            and (session in seen.notified_sessions or _came_first(seen, before, session))
        )
        if stop:
            seen.notified_sessions.add(session)
        return CloneVerdict(proven, stop)

    def _seen(self, federation: str, device: str) -> _Device:
        seen = self._devices.setdefault((federation, device), _Device())
        self._devices.move_to_end((federation, device))
        if len(self._devices) > MAX_DEVICES:
            self._devices.popitem(last=False)
        return seen


def _came_first(seen: _Device, first: str, second: str) -> bool:
    order = list(seen.sessions)
    return first in order and order.index(first) < order.index(second)


def _forget_oldest(seen: _Device) -> None:
    while len(seen.sessions) > MAX_SESSIONS:
        gone = next(session for session in seen.sessions if session != seen.current)
        del seen.sessions[gone]
        seen.notified_sessions.discard(gone)
