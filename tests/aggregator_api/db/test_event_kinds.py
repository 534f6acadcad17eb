"""The table of event kinds: whatever a state machine can come to has its entry, and nothing else is written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest

from aggregator_api.core.settings import sqlite_url
from aggregator_api.http.queries.resources import AdoptionAnswer, EnrolmentState, FederationSummary, UpdateStatus
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.event_kinds import EVENT_KINDS
from aggregator_api.storage.db.models import EventRow, FederationRow
from federation.protocol.messages import DeviceStatus, ReleaseReport
from federation.rounds.rollout import RolloutPhase
from federation.rounds.server_round import RoundPhase

SUBJECTS: dict[str, Iterable[str]] = {
    "round": RoundPhase,
    "rollout": (*RolloutPhase, *get_args(ReleaseReport.model_fields["answer"].annotation)),
    "device": (
        *get_args(DeviceStatus.model_fields["state"].annotation),
        *(set(get_args(EnrolmentState)) - {"open"}),
    ),
    "update": get_args(UpdateStatus),
    "adoption": get_args(AdoptionAnswer),
    "federation": get_args(FederationSummary.model_fields["status"].annotation),
}
LONGEST = EventRow.__table__.c.kind.type.length


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_state_has_a_kind(subject: str) -> None:
    assert [state for state in SUBJECTS[subject] if f"{subject}.{state}" not in EVENT_KINDS] == []


def test_kinds_fit_their_column_and_say_what_they_mean() -> None:
    assert [kind for kind, entry in EVENT_KINDS.items() if len(kind) > LONGEST or not entry.meaning] == []


def test_a_kind_that_is_not_in_the_table_is_not_written(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path / "server.sqlite3"))
    try:
        database.migrate()
        with pytest.raises(ValueError, match=r"event kind 'round\.begun'"), database.write() as session:
            repositories.journal(session, FederationRow(id=1, name="f"), "round.begun")
    finally:
        database.close()
