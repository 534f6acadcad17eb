"""How a version of a continuous federation comes to be: when it is due, and which changes it takes."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.devices import contributions
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import ContributionRow, FederationRow
from federation.plan import Plan
from federation.rounds import progress
from federation.rounds.server_round import Action


def due(session: Session, plan_of: Callable[[FederationRow], Plan], now: float) -> list[str]:
    """Return the federations whose next version is to be published now; those without changes are not looked at."""
    changed = select(ContributionRow.federation_id).where(ContributionRow.changed_at.is_not(None)).distinct()
    running = select(FederationRow).where(FederationRow.status == "running", FederationRow.id.in_(changed))
    return [row.name for row in session.scalars(running) if _is_due(session, row, plan_of(row), now)]


def begin(session: Session, federation: FederationRow, plan: Plan, now: float) -> tuple[Action, ...]:
    """Write that the next publication begins, and what it takes, if it is due; return what is to be done."""
    if federation.status != "running" or not _is_due(session, federation, plan, now):
        return ()
    began = progress.begin_publication(repositories.last_number(session, federation) + 1)
    row = repositories.add_publication(session, federation, began.round)
    changes = contributions.take(session, federation, row)
    detail = f"{changes} changes since the last version"
    repositories.journal(session, federation, "round.aggregating", round_number=row.number, detail=detail)
    return began.actions


def _is_due(session: Session, federation: FederationRow, plan: Plan, now: float) -> bool:
    if repositories.open_round(session, federation) is not None:
        return False
    found = contributions.counts(session, federation)
    return progress.is_publication_due(plan.publication, contributions.waiting(found), found.last, now)
