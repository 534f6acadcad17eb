"""Sends notifications once: each is recorded in the audit log before it is sent.

A process that dies between the entry and the delivery has told nothing, and nobody tells it again: at most once. What
is known to have failed is told again later; the receiver knows a repetition by its delivery's name.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol
from urllib.parse import quote

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from aggregator_api.core.settings import Settings
from aggregator_api.notifications import attention
from aggregator_api.notifications.attention import AttentionItem
from aggregator_api.notifications.channels import DeliveryResult, Notification, NotificationChannel
from aggregator_api.operations.counts import deliveries
from aggregator_api.operations.health import Readiness
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import AuditRow, FederationRow
from aggregator_api.storage.outages import failures
from gaitway.threads import SupervisedThread

log = logging.getLogger(__name__)

SEND, FAIL, RESOLVE = "notifications.send", "notifications.fail", "notifications.resolve"
RANKS = {"error": 0, "warning": 1, "note": 2}
"""Urgency of a state: a worse state is sent again, a better one isn't."""
Key = tuple[str, str]
"""A federation, or '', and the thing."""


class Told:
    """The state of each thing that a channel has sent, from the audit log, which other processes write too."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._states: dict[Key, str] = {}
        self._last = 0

    def read_on(self, session: Session) -> None:
        """Read the entries that are new."""
        query = select(AuditRow).where(AuditRow.action.in_((SEND, FAIL, RESOLVE)), AuditRow.id > self._last)
        for row in session.scalars(query.order_by(AuditRow.id)):
            self._last = row.id
            channel, _, rest = row.detail.partition(" ")
            state, _, thing = rest.partition(" ")
            if channel != self._channel:
                continue
            if row.action == SEND:
                self._states[row.federation, thing] = state
            else:
                self._states.pop((row.federation, thing), None)

    def is_news(self, key: Key, state: str) -> bool:
        """Whether nothing as urgent was sent about the thing since it began."""
        known_state = self._states.get(key)
        return known_state is None or RANKS[state] < RANKS.get(known_state, 0)

    def keys(self) -> list[Key]:
        """Return the sent, unresolved things."""
        return list(self._states)

    def claim(self, session: Session, key: Key, state: str) -> bool:
        """Record a notification in the caller's writing transaction; return False if another process has sent it."""
        self.read_on(session)
        if not self.is_news(key, state):
            return False
        self._record(session, SEND, key, state)
        return True

    def fail(self, session: Session, key: Key, state: str) -> None:
        """Record that the delivery failed."""
        self._record(session, FAIL, key, state)

    def resolve(self, session: Session, key: Key) -> None:
        """Record that it is resolved, so that it is sent again when it recurs."""
        self._record(session, RESOLVE, key, self._states.get(key, "-"))

    def _record(self, session: Session, action: str, key: Key, state: str) -> None:
        federation, thing = key
        audit.record(session, action, actor="server", federation=federation, detail=f"{self._channel} {state} {thing}")
        self.read_on(session)


PERIOD_S = 20.0
HOLD_S = 60.0
"""Minimum duration of a problem before it is sent, such as a restarting broker's."""
RESOLVE_S = 600.0
"""Time after which a vanished problem is resolved; it is sent again when it recurs."""
RETRY_S = 900.0
"""Pause after all attempts failed, before they start again."""
FIRST_PAUSE_S, PAUSE_FACTOR = 2.0, 4.0
MAX_PER_HOUR = 30
STOP_S = 2.0
HOUR_S = 3600.0


class LeadershipCheck(Protocol):
    """Who drives which federation."""

    def leads(self, name: str) -> bool:
        """Whether this process drives that federation."""


class Notifiers:
    """The threads of all channels, which start and end together."""

    def __init__(
        self,
        settings: Settings,
        channels: Iterable[NotificationChannel],
        database: Database,
        readiness: Readiness,
        leadership: LeadershipCheck,
    ) -> None:
        self._all = [Notifier(settings, channel, database, readiness, leadership) for channel in channels]

    def start(self) -> None:
        """Begin to look."""
        for notifier in self._all:
            notifier.start()

    def stop(self) -> None:
        """End after the attempts that are being made, or give them up after `STOP_S`."""
        for notifier in self._all:
            notifier.stopped.set()
        deadline = time.monotonic() + STOP_S
        for notifier in self._all:
            notifier.join(max(0.0, deadline - time.monotonic()))


class Notifier:
    """One channel's thread; `look` is one turn of it."""

    def __init__(
        self,
        settings: Settings,
        channel: NotificationChannel,
        database: Database,
        readiness: Readiness,
        leadership: LeadershipCheck,
        *,
        pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._settings, self._channel = settings, channel
        self._database, self._readiness, self._leadership = database, readiness, leadership
        self._pause_s = pause_s
        self._base = settings.public_url or settings.own_url
        self._told = Told(channel.name)
        self._since: dict[Key, float] = {}
        self._gone: dict[Key, float] = {}
        self._retry_at: dict[Key, float] = {}
        self._sent: deque[float] = deque(maxlen=MAX_PER_HOUR)
        self.stopped = threading.Event()
        """Set to end the thread; nothing is attempted again from then on."""
        self._thread = SupervisedThread(f"notifications {channel.name}", self._work)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the attempt that is being made; `stopped` is set before."""
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while not self.stopped.is_set():
            try:
                self.look(time.time())
            except SQLAlchemyError as error:
                failures.report("notifications not looked for", error)
                self._told = Told(self._channel.name)  # it may hold what was not committed
            self.stopped.wait(PERIOD_S)

    def look(self, now: float) -> None:
        """Send what has needed attention for long enough and wasn't sent yet; record what is resolved."""
        with self._database.read() as session:
            self._told.read_on(session)
            federations = [name for name in session.scalars(select(FederationRow.name)) if self._leadership.leads(name)]
            found = self._found(session, federations, now)
        self._since = {key: self._since.get(key, now) for key in found}
        self._resolve(found.keys(), {*federations, ""}, now)
        for key, items in found.items():
            if now - self._since[key] >= HOLD_S and now >= self._retry_at.get(key, 0.0):
                self._tell(key, items, now)

    def _found(self, session: Session, federations: Iterable[str], now: float) -> dict[Key, list[AttentionItem]]:
        """Return the problems that are urgent enough by federation and thing, worst first."""
        items = attention.of_server(session, self._readiness, now)
        for row in session.scalars(select(FederationRow).where(FederationRow.name.in_(federations))):
            items += attention.of_federation(session, row, now)
        found: dict[Key, list[AttentionItem]] = {}
        for item in attention.worst_first(items):
            is_of_itself = item.thing == attention.failed_channel(self._channel.name)
            if RANKS[item.level] <= RANKS[self._settings.notify_level] and not is_of_itself:
                found.setdefault((item.federation, self._thing(item)), []).append(item)
        return found

    def _thing(self, item: AttentionItem) -> str:
        """Name a thing; of several processes of one database each has its own disk and its own broker's connection."""
        return f"{self._settings.holder}: {item.thing}" if item.is_own and self._settings.shares_work else item.thing

    def _resolve(self, present: Iterable[Key], own: set[str], now: float) -> None:
        known, there = self._told.keys(), {*present}
        foreign = ": " if self._settings.shares_work else None
        gone = [key for key in known if key not in there and key[0] in own and not self._is_anothers(key, foreign)]
        self._gone = {key: self._gone.get(key, now) for key in gone}
        over = [key for key, since in self._gone.items() if now - since >= RESOLVE_S]
        if not over:
            return
        with self._database.write() as session:
            for key in over:
                self._told.resolve(session, key)

    def _is_anothers(self, key: Key, mark: str | None) -> bool:
        """Whether a thing is of another process, which alone knows whether it is over."""
        return mark is not None and mark in key[1] and not key[1].startswith(f"{self._settings.holder}{mark}")

    def _tell(self, key: Key, items: list[AttentionItem], now: float) -> None:
        state = items[0].level
        if not self._told.is_news(key, state):
            return
        if len(self._sent) == MAX_PER_HOUR and now - self._sent[0] < HOUR_S:
            log.warning("notification put off channel=%s: %d within an hour", self._channel.name, MAX_PER_HOUR)
            self._retry_at[key] = self._sent[0] + HOUR_S
            return
        with self._database.write() as session:
            if not self._told.claim(session, key, state):
                return
        self._sent.append(now)
        result = self._deliver(self._notification(key, items, now))
        deliveries.record(self._channel.name, result.reason, now)
        if not result.reason:
            log.info("notification sent channel=%s thing=%s state=%s", self._channel.name, "/".join(key), state)
            return
        log.warning("notification failed channel=%s thing=%s: %s", self._channel.name, "/".join(key), result.reason)
        self._retry_at[key] = now + RETRY_S
        with self._database.write() as session:
            self._told.fail(session, key, state)

    def _notification(self, key: Key, items: list[AttentionItem], now: float) -> Notification:
        federation, thing = key
        path = f"/federations/{quote(federation)}/{items[0].page_path}".rstrip("/") if federation else "/"
        message = "\n".join(item.message for item in items)
        level = items[0].level
        return Notification(level, message, federation, thing, level, self._base + path, self._base, now)

    def _deliver(self, notification: Notification) -> DeliveryResult:
        pause_s = self._pause_s
        for attempt in range(1, self._settings.notify_attempts + 1):
            result = self._channel.deliver(notification)
            if not result.reason or result.is_final or attempt == self._settings.notify_attempts:
                break
            if self.stopped.wait(pause_s):
                break
            pause_s *= PAUSE_FACTOR
        return result
