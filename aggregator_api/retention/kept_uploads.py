"""What a federation's states keep of single devices goes with the device, from every version that has its bytes."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.db import repositories
from aggregator_api.db.models import FederationRow, ModelVersionRow
from aggregator_api.errors import ConflictError
from aggregator_api.rounds.aggregation import read_state
from aggregator_api.storage.blobs import BlobStore
from federation import wire
from federation.methods import method_from_json
from federation.rounds.server_round import RoundPhase


def forget(session: Session, blobs: BlobStore, federation: FederationRow, device: str) -> None:
    """Write the states without a device, inside the caller's transaction; the old blobs go as garbage.

    Raises:
        ConflictError: if a round is being aggregated from one of them.
    """
    method = method_from_json(federation.plan["method"])
    if not method.keeps_uploads:
        return
    row = repositories.open_round(session, federation)
    if row is not None and row.phase == RoundPhase.AGGREGATING:
        raise ConflictError(
            f"round {row.number} is being aggregated with what {device!r} has sent before; try again once it has ended"
        )
    mine = (ModelVersionRow.federation_id == federation.id, ModelVersionRow.deleted_at.is_(None))
    for version in session.scalars(select(ModelVersionRow).where(*mine)):
        before = read_state(blobs, version.state_sha256)
        after = method.forget_clients(before, {device})
        if after is not before:
            version.state_sha256 = blobs.put(wire.encode(after)).sha256
