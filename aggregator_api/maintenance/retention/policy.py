"""What is removed by age, as the settings say: old model versions, settled updates, events. None is the default."""

from __future__ import annotations

import time
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.core.settings import Settings
from aggregator_api.maintenance.retention.rows import old_versions, remove_rows, retire
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.models import EventRow, FederationRow, RoundRow, UpdateRow
from aggregator_api.storage.db.repositories import ENDED, older_event, table_of

DAY_S = 86_400.0


class RetentionResult(NamedTuple):
    """What was removed, or would be."""

    versions: int = 0
    updates: int = 0
    events: int = 0

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.versions} model versions, {self.updates} updates, {self.events} events"


def apply(session: Session, settings: Settings, *, actor: str, dry_run: bool = False) -> RetentionResult:
    """Remove what is older than the settings keep, inside the caller's transaction.

    Never a version that has a name, is the newest, that the open round started from or a rollout gives out; nor an
    update that the open round holds or that waits for one.
    """
    now = time.time()
    versions = 0
    if settings.keep_versions is not None:
        for federation in session.scalars(select(FederationRow)):
            old = old_versions(session, federation, settings.keep_versions)
            versions += len(old)
            if not dry_run:
                retire(session, federation, old)
    updates = events = 0
    if settings.update_retention_days is not None:
        open_rounds = select(RoundRow.id).where(RoundRow.phase.not_in(ENDED))
        settled = (UpdateRow.status != "deferred") & (
            UpdateRow.round_id.is_(None) | UpdateRow.round_id.not_in(open_rounds)
        )
        past = settled & (UpdateRow.received_at < now - settings.update_retention_days * DAY_S)
        updates = sum(remove_rows(session, [(table_of(UpdateRow), past)], dry_run=dry_run).values())
    if settings.event_retention_days is not None:
        gone = (EventRow.created_at < now - settings.event_retention_days * DAY_S) & older_event()
        events = sum(remove_rows(session, [(table_of(EventRow), gone)], dry_run=dry_run).values())
    retired = RetentionResult(versions, updates, events)
    if any(retired) and not dry_run:
        audit.record(session, "retention.apply", actor=actor, detail=str(retired))
    return retired
