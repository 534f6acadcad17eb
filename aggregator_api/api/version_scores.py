"""Scores of versions, remembered: that of one version is made from what all of its devices have reported.

They are forgotten when the journal says that more was reported of the round that made the version, or of one that began
with it; it is read on from where it was read last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.api.time_budget import TimeBudget
from aggregator_api.db import repositories
from aggregator_api.db.event_kinds import EVENT_KINDS
from aggregator_api.db.models import EventRow, FederationRow, ModelVersionRow, RoundRow
from aggregator_api.rollouts import adoptions
from federation.protocol.messages import VersionScore

REPORTS = frozenset(kind for kind, entry in EVENT_KINDS.items() if entry.brings_scores)
MAX_FEDERATIONS = 64
MAX_VERSIONS = 2_000
"""Of one federation; past it all are forgotten, and those that are asked for are made anew."""


@dataclass
class _Known:
    """A federation's scores (None: nobody measured it) as they were at an event of its journal."""

    event: int
    scores: dict[int, VersionScore | None] = field(default_factory=dict)


class VersionScores:
    """What `adoptions.scores_of` returns, computed anew only for versions of which more was reported since."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()  # by a federation's instance

    def of(
        self,
        session: Session,
        federation: FederationRow,
        versions: Sequence[int],
        allowance: TimeBudget | None = None,
    ) -> dict[int, VersionScore]:
        """Return the scores of versions, by their ids; none of those that nobody measured, or past the allowance."""
        with self._lock:
            newest = repositories.last_event(session, federation)
            known = self._read_on(session, federation, newest)
            found: dict[int, VersionScore | None]
            found = {one: known.scores[one] for one in versions if one in known.scores}
        made: dict[int, VersionScore | None] = {}
        for one in versions:
            if one in found:
                continue
            if allowance is not None and not allowance.allows():
                break
            made[one] = adoptions.scores_of(session, federation, [one]).get(one)
        found |= made
        with self._lock:
            if known.event == newest:  # else another session has read on further, and sees more than this one
                known.scores.update(made)
        return {one: score for one, score in found.items() if score is not None}

    def _read_on(self, session: Session, federation: FederationRow, newest: int) -> _Known:
        known = self._known.get(federation.instance)
        if known is None or len(known.scores) > MAX_VERSIONS:
            known = self._known[federation.instance] = _Known(newest)
        elif newest > known.event:
            for version in _changed(session, federation, known.event, newest):
                known.scores.pop(version, None)
            known.event = newest
        self._known.move_to_end(federation.instance)
        while len(self._known) > MAX_FEDERATIONS:
            self._known.popitem(last=False)
        return known


def _changed(session: Session, federation: FederationRow, after: int, newest: int) -> set[int]:
    """Return the versions of which anything was reported, or deleted, between two events."""
    query = select(EventRow.round_number, EventRow.kind).distinct()
    query = query.where(EventRow.federation_id == federation.id, EventRow.id > after, EventRow.id <= newest)
    found = session.execute(query.where(EventRow.kind.in_((*REPORTS, "device.deleted")))).all()
    made = select(ModelVersionRow.id).where(ModelVersionRow.federation_id == federation.id)
    begun = select(RoundRow.base_version_id).where(RoundRow.federation_id == federation.id)
    if all(row.kind != "device.deleted" for row in found):  # it may have measured any of them
        numbers = {row.round_number for row in found}
        made, begun = made.where(ModelVersionRow.round_number.in_(numbers)), begun.where(RoundRow.number.in_(numbers))
    return {*session.scalars(made), *session.scalars(begun)}
