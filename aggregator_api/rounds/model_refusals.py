"""Withdraws a version that most devices can't use: `latest` goes back to the version before it.

A device signs a refusal of a model that it can't read, that doesn't fit the plan, or that is or becomes NaN. Models
that merely work badly don't count: early versions do, and promotion and rollouts handle them.

The server counts the devices that it invited to train from the version, because it drew them at random. Devices that
are quick to refuse, or to enroll, don't matter. Before the first such round, every device counts.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from aggregator_api.devices import suspension
from aggregator_api.rollouts import transitions
from aggregator_api.storage.db import epochs, repositories
from aggregator_api.storage.db.models import (
    DeviceRow,
    FederationRow,
    ModelAliasRow,
    ModelVersionRow,
    ParticipationRow,
    RoundRow,
)
from federation.errors import WireError
from federation.protocol.messages import ModelRefusal, read
from federation.protocol.signing import Kind
from federation.rounds.rollout import Halted, RolloutPhase

log = logging.getLogger(__name__)

MIN_REFUSALS = 3
"""Two liars, or two devices with one fault, are a majority of three devices: there it takes all of them."""
MOVED_BACK = ("latest", "stable")


class RefusedVersion(NamedTuple):
    """A version that most of the devices asked refuse."""

    version: ModelVersionRow
    refusing: int
    devices: int
    reason: str

    @property
    def words(self) -> str:
        """Who refuses it, and why."""
        return f"{self.refusing:,} of {self.devices:,} devices can't use version {self.version.version}: {self.reason}"


def note_refusal(session: Session, federation: FederationRow, row: DeviceRow | None, signed: str) -> bool:
    """Keep a device's refusal of a model; return whether it is its word. It holds until the device refuses another."""
    if row is None or not signed:
        return False
    about = {"federation": federation.name, "device": row.name}
    try:
        refusal = _opened(session, federation, row, signed)
    except WireError as error:
        log.warning("refusal of a model ignored: %s", error, extra=about)
        return False
    if row.refused_model != refusal.model:
        repositories.journal(session, federation, "device.refuses_model", device=row.name, detail=refusal.reason)
    row.refused_model, row.model_refusal = refusal.model, refusal.reason
    return True


def _opened(session: Session, federation: FederationRow, row: DeviceRow, signed: str) -> ModelRefusal:
    """Read a refusal.

    Raises:
        WireError: if it isn't signed by the device, or not about this federation.
    """
    if not suspension.has_key(row):
        raise WireError("the device has no key to sign it with; only enrolled devices count")
    refusal = read(ModelRefusal, suspension.verified_body(federation, row, Kind.MODEL_REFUSAL, signed))
    if (refusal.instance, refusal.epoch) != (federation.instance, epochs.current(session).epoch):
        raise WireError("it is about an earlier federation, or from before the server was restored")
    return refusal


def refused_version(session: Session, federation: FederationRow) -> RefusedVersion | None:
    """Return the version that `latest` names, if more than half of the devices asked refuse it, and enough of them."""
    version = repositories.current_version(session, federation)
    offered, refuses = _asked(session, federation, version)
    refusing = _count(session, offered, refuses)
    total = _count(session, offered)
    if refusing < MIN_REFUSALS or 2 * refusing <= total:
        return None
    often = select(DeviceRow.model_refusal).where(offered, refuses).group_by(DeviceRow.model_refusal)
    reason = session.scalar(often.order_by(func.count().desc(), DeviceRow.model_refusal).limit(1)) or ""
    return RefusedVersion(version, refusing, total, reason)


def _asked(
    session: Session, federation: FederationRow, version: ModelVersionRow
) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Return which devices are asked about a version, and which of them refuse it."""
    may = (
        DeviceRow.federation_id == federation.id,
        DeviceRow.enrolment.in_(("open", "approved")),
        DeviceRow.suspended_at.is_(None),
    )
    cohort = select(ParticipationRow.device_id).join(RoundRow, RoundRow.id == ParticipationRow.round_id)
    cohort = cohort.where(RoundRow.base_version_id == version.id, ParticipationRow.invited)
    if session.scalar(cohort.limit(1)) is None:
        return and_(*may), DeviceRow.refused_model == version.broadcast_sha256
    # a method may give each device a broadcast of its own
    given = cohort.where(ParticipationRow.device_id == DeviceRow.id)
    refused = given.where(ParticipationRow.broadcast_sha256 == DeviceRow.refused_model)
    return and_(*may, DeviceRow.id.in_(cohort)), refused.exists()


def _count(session: Session, *which: ColumnElement[bool]) -> int:
    return session.scalar(select(func.count(DeviceRow.id)).where(*which)) or 0


def withdraw(session: Session, federation: FederationRow, refused: RefusedVersion, now: float) -> bool:
    """Let names and rollouts go back to the version before, or pause where that is no help; return if that is news.

    A federation goes on from the version before, or whoever spoils one round would stop it. It pauses where the cause
    has come again, or lies in what the next version is made of, or in the first version.
    """
    version, base = refused.version, _base_of(session, federation, refused.version)
    if base is None:
        return _pause(session, federation, f"{refused.words}; there is no version before it to go back to")
    again = _is_withdrawn_again(session, federation, version, base)
    version.withdrawn = refused.words
    _move_names(session, version, base, refused.words)
    _halt_rollout(session, federation, version, refused.words, now)
    detail = f"{refused.words}; rounds start from version {base.version} again"
    number = version.round_number
    repositories.journal(session, federation, "model.withdrawn", round_number=number, detail=detail)
    if federation.kind.sums:
        _pause(session, federation, f"{refused.words}; the next version would be made of the same sums")
    elif again:
        _pause(session, federation, f"{refused.words}; it is the second one in a row that was withdrawn")
    return True


def _base_of(session: Session, federation: FederationRow, version: ModelVersionRow) -> ModelVersionRow | None:
    """Return the version that the round of this one began from, if its bytes are there."""
    row = repositories.find_round(session, federation, version.round_number)
    base = row.base_version if row is not None else None
    return base if base is not None and base.deleted_at is None and base.id != version.id else None


def _is_withdrawn_again(
    session: Session, federation: FederationRow, version: ModelVersionRow, base: ModelVersionRow
) -> bool:
    """Whether the version made last before this one, from the same version or a later one, was withdrawn too."""
    row = ModelVersionRow
    between = (row.federation_id == federation.id, row.version > base.version, row.version < version.version)
    return session.scalar(select(row.id).where(*between, row.withdrawn != "").limit(1)) is not None


def _move_names(session: Session, version: ModelVersionRow, base: ModelVersionRow, note: str) -> None:
    moved_back = (ModelAliasRow.version_id == version.id, ModelAliasRow.alias.in_(MOVED_BACK))
    for name in session.scalars(select(ModelAliasRow).where(*moved_back)):
        name.version_id, name.note = base.id, note


def _halt_rollout(
    session: Session, federation: FederationRow, version: ModelVersionRow, reason: str, now: float
) -> None:
    """Take a version back from the devices that were told to use it."""
    row = transitions.latest(session, federation)
    if row is not None and row.version_id == version.id and row.phase != RolloutPhase.HALTED:
        transitions.apply(session, federation, row, Halted(reason), now)


def _pause(session: Session, federation: FederationRow, detail: str) -> bool:
    if federation.status != "running":
        return False
    federation.status = "paused"
    detail = f"{detail}. Find out what made it, and resume"
    number = repositories.last_number(session, federation)
    repositories.journal(session, federation, "federation.paused", round_number=number, detail=detail)
    return True
