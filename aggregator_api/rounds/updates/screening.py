"""The rows of a round's screening: what `federation.aggregation.screening` judges by, and what it has found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.storage.db.models import RoundRow, UpdateRow
from aggregator_api.storage.db.repositories import ENDED, Named, journal
from federation.aggregation.screening import HISTORY_ROUNDS, NormHistory, RoundNorms, Screening, Typical, UpdateClaim
from federation.rounds.server_round import RoundPhase

EXCLUDED = "excluded"
"""Status of an update that a round has accepted, and not used in the end."""

_LOOKED_AT = 10 * HISTORY_ROUNDS
_NAMED = 20


def norm_history(session: Session, federation_id: int, before: int) -> NormHistory:
    """Read what was usual in the rounds of a federation before the one of that number."""
    query = select(RoundRow.phase, RoundRow.norms).where(
        RoundRow.federation_id == federation_id, RoundRow.number < before, RoundRow.phase.in_(ENDED)
    )
    history = NormHistory()
    for phase, norms in reversed(session.execute(query.order_by(RoundRow.number.desc()).limit(_LOOKED_AT)).all()):
        history = history.failed() if phase == RoundPhase.FAILED else history.published(_read(norms))
    return history


def claim_of(row: UpdateRow) -> UpdateClaim:
    """Return what is known of an update."""
    return UpdateClaim(int(row.manifest["examples"]), row.norms or {})


def write_screening(session: Session, federation: Named, row: RoundRow, found: Screening) -> None:
    """Write what was found about the updates of a round: into their rows, the round's, and the journal."""
    judged = found.capped.keys() | found.excluded.keys()
    rows = session.scalars(select(UpdateRow).where(UpdateRow.round_id == row.id)) if judged else ()
    updates = {update.device.name: update for update in rows if update.device.name in judged}
    for name, why in sorted(found.excluded.items()):
        updates[name].status, updates[name].reason = EXCLUDED, why
        journal(session, federation, "update.excluded", round_number=row.number, device=name, detail=why)
    for name, examples in found.capped.items():
        updates[name].counted_examples = examples
    if found.capped:
        detail = _in_words({name: claim_of(updates[name]).examples for name in found.capped}, found.capped)
        journal(session, federation, "round.capped", round_number=row.number, detail=detail)
    row.capped, row.excluded = len(found.capped), len(found.excluded)
    row.norms = {group: typical._asdict() for group, typical in found.norms.items()}
    session.flush()  # the round is also written beside the session


def _in_words(claimed: Mapping[str, int], capped: Mapping[str, int]) -> str:
    names = sorted(capped)
    claims = [f"{name} claims {claimed[name]} examples and counts with {capped[name]}" for name in names[:_NAMED]]
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return "; ".join(claims + more) + " (rounds.max_weight_ratio)"


def _read(norms: dict[str, Any] | None) -> RoundNorms:
    return {group: Typical(norm["median"], norm["updates"]) for group, norm in (norms or {}).items()}
