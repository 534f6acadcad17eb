"""The clock of rollouts: waves go on when they have lasted, new devices come in, a command's orders are said."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.db import repositories
from aggregator_api.db.database import Database
from aggregator_api.db.models import FederationRow, RolloutRow
from aggregator_api.rollouts import transitions
from aggregator_api.rounds.coordinator import Coordinator


def tick(database: Database, coordinator: Coordinator, now: float) -> None:
    """Go on with the rollouts whose time has come, of the federations that this process leads."""
    with database.read() as session:
        query = select(FederationRow.name, RolloutRow).join(FederationRow, RolloutRow.federation_id == FederationRow.id)
        found = session.execute(query.where(RolloutRow.phase.in_(transitions.OPEN))).unique().all()
        due = [name for name, row in found if coordinator.leads(name) and transitions.is_due(session, row, now)]
        unsaid = _not_announced(session, coordinator)
    for name in due:
        with coordinator.lock:
            with database.write() as session:
                federation = repositories.federation_named(session, name)
                row = transitions.under_way(session, federation) if federation else None
                changed = federation and row and transitions.look(session, federation, row, now)
            if changed:
                coordinator.announce(name)
    for name in unsaid:
        coordinator.announce(name)


def _not_announced(session: Session, coordinator: Coordinator) -> list[str]:
    """Return the federations whose order was changed beside this process: by a command on the server's database."""
    query = select(FederationRow.name, func.max(RolloutRow.serial)).join(
        RolloutRow, RolloutRow.federation_id == FederationRow.id
    )
    return [
        name
        for name, serial in session.execute(query.group_by(FederationRow.name))
        if coordinator.leads(name) and coordinator.announced_order(name) not in (None, serial)
    ]
