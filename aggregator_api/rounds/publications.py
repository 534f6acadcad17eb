"""When a continuous federation publishes, and the privacy that each published model costs."""

from __future__ import annotations

import math
from collections.abc import Callable

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from aggregator_api.devices import contributions
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import ContributionRow, FederationRow, ParticipationRow, RoundRow
from aggregator_api.storage.db.repositories import journal
from federation.plan import Plan
from federation.privacy.accounting import epsilon, epsilon_of_discrete
from federation.rounds import progress
from federation.rounds.server_round import Action, ClientStatus, RoundPhase


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


def note_privacy(session: Session, federation: FederationRow, number: int, noise_multiplier: float, plan: Plan) -> None:
    """Write the noise of the round that is just published, and the ε of the client that took part most often."""
    row = session.scalars(
        select(RoundRow).where(RoundRow.federation_id == federation.id, RoundRow.number == number)
    ).one()
    row.noise_multiplier = noise_multiplier
    session.flush()
    account, delta = epsilon_of_discrete if federation.kind.masked else epsilon, plan.rounds.delta
    found = account(_most_spent(session, federation), delta)
    row.epsilon = found if math.isfinite(found) else None
    bound = f"ε ≤ {found:.4g} at δ = {delta:g}" if math.isfinite(found) else "no bound: a round had no noise"
    detail = f"{bound}; noise multiplier {noise_multiplier:g}, no amplification by sampling claimed"
    journal(session, federation, "round.privacy", round_number=number, detail=detail)


def _most_spent(session: Session, federation: FederationRow) -> float:
    """Return the largest Σ 1/z² of any client over the published rounds it took part in; infinity without noise."""
    noise = func.coalesce(RoundRow.noise_multiplier, 0.0)
    bare = func.max(case((noise == 0, 1), else_=0))
    total = func.sum(case((noise == 0, 0.0), else_=1.0 / (noise * noise)))
    per_client = (
        select(bare.label("bare"), total.label("total"))
        .select_from(ParticipationRow)
        .join(RoundRow, RoundRow.id == ParticipationRow.round_id)
        .where(
            RoundRow.federation_id == federation.id,
            RoundRow.phase == RoundPhase.PUBLISHED,
            ParticipationRow.outcome == ClientStatus.RECEIVED,
        )
        .group_by(ParticipationRow.device_id)
        .subquery()
    )
    without, most = session.execute(select(func.max(per_client.c.bare), func.max(per_client.c.total))).one()
    return math.inf if without else float(most or 0.0)
