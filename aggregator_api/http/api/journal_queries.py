"""The journal as a person reads it: the newest events first, those of a device, some kinds or a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.storage.db.models import EventRow, FederationRow


class EventFilter(NamedTuple):
    """Which events are wanted; what is empty or None narrows nothing."""

    kinds: tuple[str, ...] = ()
    device: str = ""
    since: float | None = None
    until: float | None = None


ALL = EventFilter()


def latest_events(
    session: Session, federation: FederationRow, most: int, wanted: EventFilter = ALL, *, before: int | None = None
) -> Sequence[EventRow]:
    """Return the latest events that are wanted (before that id), the newest first."""
    query = select(EventRow).where(EventRow.federation_id == federation.id)
    if before is not None:
        query = query.where(EventRow.id < before)
    if wanted.kinds:
        query = query.where(EventRow.kind.in_(wanted.kinds))
    if wanted.device:
        query = query.where(EventRow.device == wanted.device)
    if wanted.since is not None:
        query = query.where(EventRow.created_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(EventRow.created_at < wanted.until)
    return session.scalars(query.order_by(EventRow.id.desc()).limit(most)).all()
