"""The retained announcement of a federation, made from its rows alone, so that it can be made again at any time."""

from __future__ import annotations

import time

from sqlalchemy.orm import Session

from aggregator_api.records import current_version, last_number, open_round, read_round
from aggregator_api.tables import FederationRow, ModelVersionRow
from federation.plan import Plan
from federation.protocol.messages import Announcement, BlobPointer
from federation.server_round import RoundPhase


def announcement(session: Session, federation: FederationRow, *, chunk_bytes: int) -> Announcement:
    """Say what a federation is doing now."""
    row = open_round(session, federation)
    state = "waiting"
    if federation.status != "running":
        state = federation.status
    elif row is not None:
        state = "aggregating" if row.phase == RoundPhase.AGGREGATING else "collecting"
    return Announcement.model_validate(
        {
            "federation": federation.name,
            "state": state,
            "round": row.number if row else last_number(session, federation),
            "cohort": read_round(row).cohort if row else None,
            "deadline": row.deadline_at if row else None,
            "plan": Plan.model_validate(federation.plan),
            "model": pointer(row.base_version if row else current_version(session, federation)),
            "chunk_bytes": chunk_bytes,
            "created": time.time(),
        }
    )


def pointer(version: ModelVersionRow) -> BlobPointer:
    """Point to a model version's broadcast."""
    return BlobPointer(
        sha256=version.broadcast_sha256,
        size=version.broadcast_size,
        url=f"/v1/blobs/{version.broadcast_sha256}",
    )
