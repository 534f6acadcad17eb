"""The threads that advance rollouts and evaluate promotions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.rollouts import promotion, transitions
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.event_kinds import EVENT_KINDS
from aggregator_api.storage.db.models import EventRow, FederationRow, RolloutRow


class FederationDriver(Protocol):
    """What drives a federation's announcements, and orders its transitions."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held over every transition and its effects."""

    def announce(self, name: str) -> None:
        """Say where a federation stands."""


class AnnouncedOrders(Protocol):
    """The orders announced to devices."""

    def announced_order(self, name: str) -> int | None:
        """Return the serial of the order about releases that this process has announced last."""


class LeadershipCheck(Protocol):
    """Who drives which federation."""

    def leads(self, name: str) -> bool:
        """Whether this process drives that federation."""


class RolloutScheduler:
    """Advances rollouts; only the inbox's thread calls it."""

    def __init__(
        self, database: Database, host: FederationDriver, orders: AnnouncedOrders, leadership: LeadershipCheck
    ) -> None:
        self._database = database
        self._host = host
        self._orders = orders
        self._leadership = leadership

    def tick(self, now: float) -> None:
        """Advance the rollouts whose time has come, of the federations that this process leads."""
        with self._database.read() as session:
            query = select(FederationRow.name, RolloutRow).join(
                FederationRow, RolloutRow.federation_id == FederationRow.id
            )
            rolling = session.execute(query.where(RolloutRow.phase.in_(transitions.OPEN))).unique().all()
            due = [name for name, row in rolling if self._leads(name) and transitions.is_due(session, row, now)]
            not_announced = self._not_announced(session)
        for name in due:
            with self._host.lock:
                with self._database.write() as session:
                    federation = repositories.find_federation(session, name)
                    row = transitions.under_way(session, federation) if federation else None
                    changed = federation and row and transitions.advance(session, federation, row, now)
                if changed:
                    self._host.announce(name)
        for name in not_announced:
            self._host.announce(name)

    def _leads(self, name: str) -> bool:
        return self._leadership.leads(name)

    def _not_announced(self, session: Session) -> list[str]:
        """Return the federations whose order was changed beside this process: by a command on the server's database."""
        query = select(FederationRow.name, func.max(RolloutRow.serial)).join(
            RolloutRow, RolloutRow.federation_id == FederationRow.id
        )
        return [
            name
            for name, serial in session.execute(query.group_by(FederationRow.name))
            if self._leads(name) and self._orders.announced_order(name) not in (None, serial)
        ]


KINDS = frozenset(kind for kind, entry in EVENT_KINDS.items() if entry.changes_measures)


class PromotionScheduler:
    """Moves `stable` where the measures allow it; only the inbox's thread calls it."""

    def __init__(self, database: Database, host: FederationDriver, leadership: LeadershipCheck) -> None:
        self._database = database
        self._host = host
        self._leadership = leadership
        self._examined: dict[str, int] = {}  # by federation, the event up to which its measures are known

    def tick(self) -> None:
        """Look at the federations that this process leads and of which something was measured since."""
        with self._database.read() as session:
            newest = session.scalar(select(func.max(EventRow.id))) or 0
            due = self._due(session, newest)
        for name in due:
            with self._host.lock, self._database.write() as session:
                if (federation := repositories.find_federation(session, name)) is not None:
                    promotion.promote(session, federation)
        for name in due:
            self._examined[name] = newest

    def _due(self, session: Session, newest: int) -> list[str]:
        names = [name for name in session.scalars(select(FederationRow.name)) if self._leadership.leads(name)]
        self._examined = {name: event for name, event in self._examined.items() if name in names}
        since = min((self._examined.get(name, 0) for name in names), default=newest)
        if since >= newest and all(name in self._examined for name in names):
            return []
        last = select(FederationRow.name, func.max(EventRow.id)).join(
            FederationRow, FederationRow.id == EventRow.federation_id
        )
        last = last.where(EventRow.id > since, EventRow.kind.in_(KINDS)).group_by(FederationRow.name)
        changed: dict[str, int] = {row[0]: row[1] for row in session.execute(last)}
        found = [name for name in names if name not in self._examined or changed.get(name, 0) > self._examined[name]]
        for name in set(names) - set(found):
            self._examined[name] = newest
        return found
