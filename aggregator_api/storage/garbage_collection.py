"""Removes blobs that no row refers to.

Kept are: the state and the broadcast of every model version that was not deleted, the network of a federation below the
head, what the devices of open rounds get, what all members of a secure sum are told, and every update that is deferred,
or accepted into a round that has not ended, with what its device got to start from; in a continuous federation what
each device has sent last, what of it the newest version has, and what the next one takes. What is younger than the
grace period is kept too, since a blob is written before its row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, or_, select
from sqlalchemy.orm import Session

from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import (
    ContributionRow,
    FederationRow,
    ModelVersionRow,
    ParticipationRow,
    RoundRow,
    SecureSumRow,
    UpdateRow,
)
from aggregator_api.storage.db.repositories import ENDED

log = logging.getLogger(__name__)

CONTRIBUTED = (ContributionRow.sha256, ContributionRow.taken_sha256, ContributionRow.published_sha256)


class GarbageResult(NamedTuple):
    """What was removed, or would be."""

    blobs: int
    size: int


def collect(
    database: Database,
    blobs: BlobStore,
    *,
    grace_s: float,
    dry_run: bool = False,
    is_over: Callable[[], bool] = lambda: False,
) -> GarbageResult:
    """Remove what is older than `grace_s` and referred to by no row; of one process one thread at a time.

    Once `is_over`, what remains is left to the next collection.

    Raises:
        ConfigError: if the store is not a directory; an object store has rules of its own for old objects.
    """
    with blobs.collecting:
        old = list(blobs.older_than(time.time() - grace_s))
        with database.read() as session:
            needed = referenced(session)
        garbage = [blob for blob in old if blob.sha256 not in needed]
        if not dry_run:
            wanted = takewhile(lambda _: not is_over(), garbage)
            garbage = [blob for blob in wanted if _remove(database, blobs, blob.sha256, grace_s)]
            blobs.forget_unfinished(time.time() - grace_s)
    removed = GarbageResult(len(garbage), sum(blob.size for blob in garbage))
    log.info("garbage %s blobs=%d bytes=%d", "found" if dry_run else "removed", *removed)
    return removed


def referenced(session: Session) -> set[str]:
    """Return the names of all blobs that rows need."""
    return set(_names(session, _queries()))


def _remove(database: Database, blobs: BlobStore, sha256: str, grace_s: float) -> bool:
    """Take a blob out of sight, look once more whether somebody needs it now, and only then remove it."""
    with blobs.detach(sha256) as aside:
        with database.read() as session:
            again = any(session.scalars(query.limit(1)).first() for query in _queries(sha256))
        if again or aside.modified() > time.time() - grace_s:  # stored anew meanwhile: writing it touches it
            return False
        aside.remove()
    return True


def _queries(sha256: str | None = None) -> Iterator[Select[Any]]:
    """Yield what reads the names in use: all, or one."""
    open_rounds = select(RoundRow.id).where(RoundRow.phase.not_in(ENDED))
    waiting = or_(
        UpdateRow.status == "deferred", and_(UpdateRow.status == "accepted", UpdateRow.round_id.in_(open_rounds))
    )
    kept = ModelVersionRow.deleted_at.is_(None)
    started_from = (
        select(ParticipationRow.broadcast_sha256)
        .join(RoundRow, ParticipationRow.round_id == RoundRow.id)
        .join(
            UpdateRow,
            and_(
                UpdateRow.federation_id == RoundRow.federation_id,
                UpdateRow.base_round == RoundRow.number,
                UpdateRow.device_id == ParticipationRow.device_id,
            ),
        )
    )
    for query, column in (
        (select(ModelVersionRow.state_sha256).where(kept), ModelVersionRow.state_sha256),
        (select(ModelVersionRow.broadcast_sha256).where(kept), ModelVersionRow.broadcast_sha256),
        (
            select(ParticipationRow.broadcast_sha256).where(ParticipationRow.round_id.in_(open_rounds)),
            ParticipationRow.broadcast_sha256,
        ),
        (started_from.where(waiting), ParticipationRow.broadcast_sha256),
        (select(FederationRow.feature_model_sha256), FederationRow.feature_model_sha256),
        (select(FederationRow.program_sha256), FederationRow.program_sha256),
        (select(SecureSumRow.shared_sha256), SecureSumRow.shared_sha256),
        (select(UpdateRow.sha256).where(waiting), UpdateRow.sha256),
        *((select(column), column) for column in CONTRIBUTED),
    ):
        yield query if sha256 is None else query.where(column == sha256)


def _names(session: Session, queries: Iterable[Select[Any]]) -> Iterator[str]:
    for query in queries:
        yield from (name for name in session.scalars(query) if name)
