"""What was told, and to whom: entries of the audit, written before the telling, so that nothing is told twice.

A process that dies between the entry and the delivery has told nothing, and nobody tells it again: at most once. What
is known to have failed is told again later; the receiver knows a repetition by its delivery's name.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.storage.db import audit
from aggregator_api.storage.db.models import AuditRow

SEND, FAIL, RESOLVE = "notifications.send", "notifications.fail", "notifications.resolve"
RANKS = {"error": 0, "warning": 1, "note": 2}
"""How urgent a state is: what has become worse is told again, what has become better is not."""
Key = tuple[str, str]
"""A federation, or '', and the thing."""


class Told:
    """Which state of each thing one channel has told; read from the audit, which other processes write too."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._states: dict[Key, str] = {}
        self._last = 0

    def read_on(self, session: Session) -> None:
        """Read the entries that are new."""
        query = select(AuditRow).where(AuditRow.action.in_((SEND, FAIL, RESOLVE)), AuditRow.id > self._last)
        for row in session.scalars(query.order_by(AuditRow.id)):
            self._last = row.id
            channel, _, rest = row.detail.partition(" ")
            state, _, thing = rest.partition(" ")
            if channel != self._channel:
                continue
            if row.action == SEND:
                self._states[row.federation, thing] = state
            else:
                self._states.pop((row.federation, thing), None)

    def is_news(self, key: Key, state: str) -> bool:
        """Whether nothing as urgent was told of the thing since it began."""
        known_state = self._states.get(key)
        return known_state is None or RANKS[state] < RANKS.get(known_state, 0)

    def keys(self) -> list[Key]:
        """Return the things that were told and are not over."""
        return list(self._states)

    def claim(self, session: Session, key: Key, state: str) -> bool:
        """Note, in the caller's writing transaction, that it is told now; false if another process has told it."""
        self.read_on(session)
        if not self.is_news(key, state):
            return False
        self._record(session, SEND, key, state)
        return True

    def fail(self, session: Session, key: Key, state: str) -> None:
        """Note that nobody took it."""
        self._record(session, FAIL, key, state)

    def resolve(self, session: Session, key: Key) -> None:
        """Note that it is over: when it begins again, it is told again."""
        self._record(session, RESOLVE, key, self._states.get(key, "-"))

    def _record(self, session: Session, action: str, key: Key, state: str) -> None:
        federation, thing = key
        audit.record(session, action, actor="server", federation=federation, detail=f"{self._channel} {state} {thing}")
        self.read_on(session)
