"""The clock of rollouts: waves go on when they have lasted, and new devices come in."""

from __future__ import annotations

from sqlalchemy import select

from aggregator_api import records, rollouts
from aggregator_api.coordinator import Coordinator
from aggregator_api.database import Database
from aggregator_api.tables import FederationRow, RolloutRow


def tick(database: Database, coordinator: Coordinator, now: float) -> None:
    """Go on with the rollouts whose time has come, of the federations that this process leads."""
    with database.read() as session:
        query = select(FederationRow.name, RolloutRow).join(FederationRow, RolloutRow.federation_id == FederationRow.id)
        found = session.execute(query.where(RolloutRow.phase.in_(rollouts.OPEN))).unique().all()
        due = [name for name, row in found if coordinator.leads(name) and rollouts.is_due(session, row, now)]
    for name in due:
        with coordinator.lock:
            with database.write() as session:
                federation = records.federation_named(session, name)
                row = rollouts.under_way(session, federation) if federation else None
                changed = federation and row and rollouts.look(session, federation, row, now)
            if changed:
                coordinator.announce(name)
