"""Leadership among several server processes: leases in the database, and the leader's work.

One server process drives each federation, until its lease runs out. A lease is a row with a holder and an expiry by the
database's clock, so that the processes' own clocks do not matter. A lease that runs out later than any process would
set it was written before that clock was set back, and counts as run out: what else would block its federation until the
clock gets there? Free and expired rows are taken with FOR UPDATE SKIP LOCKED, so that no process waits for another one
that is taking.

The holder alone listens to the federation's devices, so the chunks of an update meet in one process; it alone announces
and aggregates. Every process answers REST: what it changes it writes into the rows, and notifies the holder, which
continues from them. Rows stay right whoever writes them, because writers come one after the other.

If a holder dies, its leases run out, and another process reads back where the rows say that the rounds stand.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from aggregator_api.storage.db.database import Database
from aggregator_api.storage.outages import failures
from gaitway.logs import about
from gaitway.threads import SupervisedThread

log = logging.getLogger(__name__)

_ROWS = text(
    "INSERT INTO leases (federation_id, holder, expires_at, notifications) SELECT f.id, '', 0, 0 FROM federations f "
    "WHERE NOT EXISTS (SELECT 1 FROM leases l WHERE l.federation_id = f.id) ON CONFLICT DO NOTHING"
)
_NOW = "extract(epoch FROM clock_timestamp())"
_RUN_OUT = f"(expires_at < {_NOW} OR expires_at > {_NOW} + :farthest_s)"
MAX_LEASE_FACTOR = 10
"""Times its own lease that a process believes another one's: all should have the same."""
_TAKE = text(
    f"UPDATE leases SET holder = :holder, expires_at = {_NOW} + :lease_s FROM federations f WHERE f.id = federation_id "
    "AND federation_id IN (SELECT federation_id FROM leases "
    f"WHERE holder = :holder OR {_RUN_OUT} FOR UPDATE SKIP LOCKED) RETURNING f.name, notifications"
)
_LOAD = text(
    f"SELECT f.name, CASE WHEN l.holder = :holder THEN l.notifications END, l.federation_id IS NULL OR {_RUN_OUT} "
    "FROM federations f LEFT JOIN leases l ON l.federation_id = f.id"
)
_NOTIFY = text(
    "UPDATE leases SET notifications = notifications + 1 "
    "WHERE federation_id = (SELECT id FROM federations WHERE name = :name)"
)
_RELEASE = text("UPDATE leases SET expires_at = 0 WHERE holder = :holder")


class LeaseStatus(NamedTuple):
    """What the rows say: how often the holder of each of its own was notified, and whether some are free."""

    notifications: dict[str, int]
    has_free: bool


class Leases:
    """The leases of one process, whose name in them is `holder`."""

    def __init__(self, database: Database, holder: str, lease_s: float) -> None:
        self._engine = database.engine  # not a writing session: a lease must not queue behind the round's writers
        self._holder = {"holder": holder}
        self._lease_s = lease_s
        self._farthest = {"farthest_s": max(60.0, MAX_LEASE_FACTOR * lease_s)}

    def take(self) -> dict[str, int]:
        """Renew held leases and take free or expired ones; return the held ones, with their notifications."""
        with self._engine.begin() as connection:
            connection.execute(_ROWS)
        with self._engine.begin() as connection:
            rows = connection.execute(_TAKE, {**self._holder, **self._farthest, "lease_s": self._lease_s})
            return {row.name: row.notifications for row in rows}

    def load(self) -> LeaseStatus:
        """Read without taking."""
        with self._engine.connect() as connection:
            rows = connection.execute(_LOAD, {**self._holder, **self._farthest}).all()
        return LeaseStatus(
            {name: notifications for name, notifications, _ in rows if notifications is not None},
            any(free for *_, free in rows),
        )

    def notify(self, name: str) -> None:
        """Tell whoever holds a federation that its rows were changed."""
        with self._engine.begin() as connection:
            connection.execute(_NOTIFY, {"name": name})

    def release(self) -> None:
        """Release all held leases immediately."""
        with self._engine.begin() as connection:
            connection.execute(_RELEASE, self._holder)


POLL_S = 0.5
RENEWALS = 4
"""Number of renewals of a lease before it would expire."""


class Leadership(Protocol):
    """Says which federations this process drives."""

    @property
    def led_federations(self) -> frozenset[str] | None:
        """The federations that this process drives now; None: every one."""

    def leads(self, name: str) -> bool:
        """Whether this process drives that federation."""

    def notify(self, name: str) -> None:
        """Have a change of its rows acted on by the process that leads the federation."""

    def start(self) -> None:
        """Begin to lead."""

    def stop(self) -> None:
        """Take nothing more; `release` lets others continue at once."""

    def release(self) -> None:
        """Lead nothing any more, once all work is done."""


class SoleLeadership:
    """Of a process that has the database to itself: it always leads."""

    led_federations = None

    def leads(self, name: str) -> bool:
        """Say that it does."""
        return True

    def notify(self, name: str) -> None:
        """Do nothing: there is no other process."""

    def start(self) -> None:
        """Take nothing: everything is its own."""

    def stop(self) -> None:
        """Leave everything as it is."""

    def release(self) -> None:
        """Give nothing back."""


class LeaseLeadership:
    """Takes and renews leases in a separate thread, with callbacks for gained and changed leases and notifications.

    `is_healthy`: whether this process could do the work now; one that could not lets its leases run out. The callbacks
    run on that thread, with no lock held.
    """

    def __init__(
        self,
        leases: Leases,
        lease_s: float,
        *,
        is_healthy: Callable[[], bool],
        gained: Callable[[str], None],
        notified: Callable[[str], None],
        changed: Callable[[frozenset[str]], None],
    ) -> None:
        self._leases, self._lease_s, self._is_healthy = leases, lease_s, is_healthy
        self._gained, self._notified, self._changed = gained, notified, changed
        self._seen: dict[str, int] = {}
        self._until = 0.0
        self._renew_at = 0.0
        self._stopping = False
        self._wake = threading.Event()
        self._thread = SupervisedThread("leases", self._work)

    def leads(self, name: str) -> bool:
        """Whether this process holds the federation's lease, by a clock that is behind the database's."""
        return name in self._seen and time.monotonic() < self._until

    @property
    def led_federations(self) -> frozenset[str]:
        """The federations that this process drives now."""
        return frozenset(name for name in self._seen if self.leads(name))

    def start(self) -> None:
        """Take free leases now, and continue in the background."""
        self._guarded(self.poll)
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more; `release` lets others continue at once."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def release(self) -> None:
        """Give every lease back."""
        self._seen = {}
        self._guarded(self._leases.release)

    def notify(self, name: str) -> None:
        """Have a change acted on: by this process if the federation is free, else by the one that holds it."""
        self._leases.notify(name)
        self._wake.set()

    def poll(self) -> None:
        """Read the rows once; renew and take if it is time, or if some are free."""
        if not self._is_healthy():
            self._expire()
            return
        status = self._leases.load()
        if status.has_free or time.monotonic() >= self._renew_at:
            self._take()
        else:
            self._update(status.notifications)

    def _take(self) -> None:
        begun_at = time.monotonic()
        held = self._leases.take()
        self._until, self._renew_at = begun_at + self._lease_s, begun_at + self._lease_s / RENEWALS
        self._update(held)

    def _update(self, held: dict[str, int]) -> None:
        before, self._seen = self._seen, held
        if before.keys() != held.keys():
            self._changed(frozenset(held))
        for name in held.keys() - before.keys():
            log.info("leadership gained", extra=about(federation=name))
            self._gained(name)
        for name in held.keys() & before.keys():
            if held[name] != before[name]:
                self._notified(name)
        for name in before.keys() - held.keys():
            log.warning("leadership lost", extra=about(federation=name))

    def _expire(self) -> None:
        if self._seen and time.monotonic() >= self._until:
            self._update({})

    def _work(self) -> None:
        while not self._stopping:
            self._wake.wait(POLL_S)
            self._wake.clear()
            self._guarded(self.poll)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except SQLAlchemyError as error:
            failures.report("leases not readable", error)  # they run out unless the database comes back in time
            self._expire()
        except Exception:
            log.exception("takeover failed")
