"""Where the devices are after the server was away: they say their status again, and who does not is offline.

Devices have the broker retain nothing, so a server that comes back, or takes a federation over, asks: its announcement,
which is retained, carries a new random text. A last will that was lost meanwhile is made up for by silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow

ANSWER_S = 60.0
"""In which a device answers that is there; it takes two seconds, and longer over a bad network."""


class PresenceCheck:
    """Presence checks of one process; its coordinator's lock orders them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, str] = {}
        self._asked: dict[str, tuple[float, float]] = {}  # on this clock, and as the rows tell the time

    def token_of(self, federation: str) -> str:
        """Return what its announcement carries; empty before the first."""
        return self._calls.get(federation, "")

    def begin(self, federation: str) -> None:
        """Ask the devices of a federation with its next announcement."""
        self._calls[federation] = uuid4().hex
        self._asked[federation] = self._clock(), time.time()

    def drop(self) -> None:
        """Take nobody's silence for an answer to what was asked so far."""
        self._asked.clear()

    def over(self) -> list[tuple[str, float]]:
        """Return each federation that was asked long enough ago, once, and when that was (Unix time)."""
        now = self._clock()
        due = [(name, question[1]) for name, question in self._asked.items() if now - question[0] >= ANSWER_S]
        for name, _ in due:
            del self._asked[name]
        return due


def mark_unresponsive(session: Session, federation: str, asked_at: float) -> None:
    """Take devices for offline that were not heard since; one that was is where it said."""
    row = repositories.find_federation(session, federation)
    if row is None:
        return
    query = select(DeviceRow).where(
        DeviceRow.federation_id == row.id, DeviceRow.state != "offline", DeviceRow.seen_at < asked_at
    )
    for device in session.scalars(query):
        device.state = "offline"
        repositories.journal(
            session, row, "device.offline", device=device.name, detail="it did not answer the presence check"
        )
