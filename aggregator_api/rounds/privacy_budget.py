"""The account of what a federation's published models have spent of its clients' privacy, kept in its rounds' rows."""

from __future__ import annotations

import math

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from aggregator_api.storage.db.models import FederationRow, ParticipationRow, RoundRow
from aggregator_api.storage.db.repositories import journal
from federation.plan import Plan
from federation.privacy.accounting import epsilon, epsilon_of_discrete
from federation.rounds.server_round import ClientStatus, RoundPhase


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
