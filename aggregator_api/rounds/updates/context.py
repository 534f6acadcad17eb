"""What one message about an update needs to know, read with one statement whose cost does not grow with the cohort."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Row, Select, and_, bindparam, exists, func, select
from sqlalchemy.orm import Session, aliased

from aggregator_api.storage.db.models import (
    ContributionRow,
    DeviceRow,
    FederationRow,
    ModelVersionRow,
    ParticipationRow,
    RoundRow,
    UpdateRow,
)
from aggregator_api.storage.db.repositories import ENDED, read_round
from federation.rounds.server_round import ClientStatus, Round

ACCEPTED_STATUSES = ("accepted", "deferred")
"""Statuses of updates that are safe here, as their device is told."""


REPORTED = (*ACCEPTED_STATUSES, "excluded")
"""Statuses of updates beside which no other of their device for the same round is taken."""


class KnownUpdate(NamedTuple):
    """An update of that id that is settled."""

    status: str
    reason: str
    sha256: str
    nonce: str
    sequence: int | None = None


class FederationInfo(NamedTuple):
    """As much of a federation as an update needs."""

    id: int
    name: str
    instance: str
    status: str
    revision: int
    last_round: int
    published: int


class DeviceInfo(NamedTuple):
    """As much of a device as an update needs."""

    id: int
    name: str
    enrolment: str
    public_key: str | None
    examples: int
    is_suspended: bool
    refused_updates: int = 0
    """How many of its updates in a row were refused, or left out of their rounds."""


class BaseRound(NamedTuple):
    """The device's part in the round that the update is from; `invited` is None if it had none."""

    invited: bool | None
    broadcast_sha256: str | None


class OpenRound(NamedTuple):
    """The round that has not ended, and where the device stands in it."""

    id: int
    round: Round
    status: ClientStatus


class Contributed(NamedTuple):
    """What the device has sent last to a continuous federation."""

    sequence: int
    sha256: str  # of the bytes that were sent


class UpdateContext(NamedTuple):
    """Everything that decides about one update, at one moment."""

    federation: FederationInfo | None
    device: DeviceInfo | None
    known: KnownUpdate | None
    base: BaseRound | None
    open: OpenRound | None
    reported: bool
    """Whether another update of the device for the same round is safe here."""
    contributed: Contributed | None = None

    @classmethod
    def load(cls, session: Session, federation: str, device: str, update_id: str, base_round: int = 0) -> UpdateContext:
        """Read the context of an update that names these."""
        names = {"federation": federation, "device": device, "update_id": update_id, "base_round": base_round}
        row = session.connection().execute(_QUERY, names).first()
        return _read(row, federation, device) if row is not None else cls(None, None, None, None, None, False)


def _query() -> Select[tuple[object, ...]]:
    base, now = aliased(RoundRow), aliased(RoundRow)
    base_part, part, other = aliased(ParticipationRow), aliased(ParticipationRow), aliased(UpdateRow)
    last = select(func.max(RoundRow.number)).where(RoundRow.federation_id == FederationRow.id).scalar_subquery()
    newest = select(func.max(ModelVersionRow.version)).where(ModelVersionRow.federation_id == FederationRow.id)
    reported = exists().where(
        other.device_id == DeviceRow.id, other.base_round == bindparam("base_round"), other.status.in_(REPORTED)
    )
    columns = (
        (
            FederationRow.id,
            FederationRow.instance,
            FederationRow.status,
            FederationRow.revision,
            last.label("last_round"),
            newest.scalar_subquery().label("published"),
        ),
        (
            DeviceRow.id.label("device_id"),
            DeviceRow.enrolment,
            DeviceRow.public_key,
            DeviceRow.examples,
            DeviceRow.suspended_at,
            DeviceRow.refused_updates,
        ),
        (
            UpdateRow.status.label("known"),
            UpdateRow.reason.label("known_reason"),
            UpdateRow.sha256.label("known_sha256"),
            UpdateRow.manifest["nonce"].as_string().label("known_nonce"),
            UpdateRow.manifest["sequence"].as_string().label("known_sequence"),  # beyond PostgreSQL's integers
        ),
        (base.id.label("base_id"), base_part.invited, base_part.broadcast_sha256),
        (now.id.label("open_id"), now.number, now.pending, now.received, now.phase, now.paused, now.deadline_passed),
        (now.reason.label("round_reason"), part.outcome, reported.label("reported")),
        (ContributionRow.sequence, ContributionRow.update_sha256),
    )
    device = and_(DeviceRow.federation_id == FederationRow.id, DeviceRow.name == bindparam("device"))
    update = and_(UpdateRow.device_id == DeviceRow.id, UpdateRow.update_id == bindparam("update_id"))
    return (
        select(*(column for group in columns for column in group))
        .select_from(FederationRow)
        .outerjoin(DeviceRow, device)
        .outerjoin(UpdateRow, update)
        .outerjoin(base, and_(base.federation_id == FederationRow.id, base.number == bindparam("base_round")))
        .outerjoin(base_part, and_(base_part.round_id == base.id, base_part.device_id == DeviceRow.id))
        .outerjoin(now, and_(now.federation_id == FederationRow.id, now.phase.not_in(ENDED)))
        .outerjoin(part, and_(part.round_id == now.id, part.device_id == DeviceRow.id))
        .outerjoin(ContributionRow, ContributionRow.device_id == DeviceRow.id)
        .where(FederationRow.name == bindparam("federation"))
    )


_QUERY = _query()


def _read(row: Row[tuple[object, ...]], federation: str, device: str) -> UpdateContext:
    return UpdateContext(
        FederationInfo(row.id, federation, row.instance, row.status, row.revision, row.last_round or 0, row.published),
        _device(row, device) if row.device_id is not None else None,
        _known(row) if row.known is not None else None,
        BaseRound(row.invited, row.broadcast_sha256) if row.base_id is not None else None,
        _open(row) if row.open_id is not None else None,
        bool(row.reported),
        Contributed(row.sequence, row.update_sha256) if row.sequence is not None else None,
    )


def _device(row: Row[tuple[object, ...]], name: str) -> DeviceInfo:
    is_suspended = row.suspended_at is not None
    return DeviceInfo(
        row.device_id, name, row.enrolment, row.public_key, row.examples, is_suspended, row.refused_updates
    )


def _known(row: Row[tuple[object, ...]]) -> KnownUpdate:
    sequence = None if row.known_sequence is None else int(row.known_sequence)
    return KnownUpdate(row.known, row.known_reason, row.known_sha256, row.known_nonce or "", sequence)


def _open(row: Row[tuple[object, ...]]) -> OpenRound:
    status = ClientStatus(row.outcome or ClientStatus.UNINVITED)
    return OpenRound(row.open_id, read_round(row, reason=row.round_reason), status)
