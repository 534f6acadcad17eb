"""Looks again at a federation's names whenever its journal tells of a new version or a new measure."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.rollouts import promotion
from aggregator_api.rollouts.scheduler import FederationDriver, LeadershipCheck
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.event_kinds import EVENT_KINDS
from aggregator_api.storage.db.models import EventRow, FederationRow

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
