"""The server's epoch: a number that rises with every restore, while all other numbers in its rows repeat.

Devices remember which rounds they have trained, and the newest that they have believed. A server that was restored
stands before that, and they would neither train for it nor believe it. A higher epoch tells them: what they remember of
the one before does not bind any more.
"""

from __future__ import annotations

import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import ConfigError
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import EpochRow, FederationRow

HIGHEST = (1 << 53) - 1


def current(session: Session) -> EpochRow:
    """Return the epoch that the server is in, and when it was restored to begin it."""
    return session.scalars(select(EpochRow)).one()


def begin(session: Session, wanted: int | None = None, now: float | None = None) -> int:
    """Begin a new epoch and return it; the open rounds' deadlines are set anew.

    It is taken from the clock, so that a second restore of the same backup does not begin the epoch of the first once
    more; `wanted` is for a clock that is wrong.

    Raises:
        ConfigError: if the epoch that is wanted is not above the present one.
    """
    now = time.time() if now is None else now
    row = current(session)
    if wanted is not None and not row.epoch < wanted <= HIGHEST:
        raise ConfigError(f"epoch {wanted} was asked for; it must be above the present one, which is {row.epoch}")
    row.epoch = wanted or max(row.epoch + 1, int(now))
    row.restored_at = now
    for federation in session.scalars(select(FederationRow).order_by(FederationRow.id)):
        number = repositories.last_number(session, federation)
        _renew_deadline(session, federation, now)
        repositories.journal(session, federation, "server.restored", round_number=number, detail=f"epoch {row.epoch}")
    return row.epoch


def restored_words(row: EpochRow) -> str:
    """Say that the server was restored; empty if it never was."""
    if row.restored_at is None:
        return ""
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(row.restored_at))
    return f"the server was restored on {at} and began epoch {row.epoch}"


def _renew_deadline(session: Session, federation: FederationRow, now: float) -> None:
    """Give the open round its whole time again: its devices could not know of it meanwhile."""
    row, deadline_s = (
        repositories.open_round(session, federation),
        federation.parsed_plan.rounds.deadline_s,
    )
    if row is not None and row.deadline_at is not None and deadline_s is not None:
        row.opened_at, row.deadline_at = now, now + deadline_s
