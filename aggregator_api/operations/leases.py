"""Row leases: for each federation one server process that drives it, until its lease runs out.

A lease is a row with a holder and an expiry by the database's clock, so that the processes' own clocks do not matter.
A lease that runs out later than any process would set it was written before that clock was set back, and counts as run
out: what else would block its federation until the clock gets there?
Free and expired rows are taken with FOR UPDATE SKIP LOCKED, so that no process waits for another one that is taking.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import text

from aggregator_api.storage.db.database import Database

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
        """Renew what is held and take what is free or has run out; return those held, with their notifications."""
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
        """Let others take what is held, at once."""
        with self._engine.begin() as connection:
            connection.execute(_RELEASE, self._holder)
