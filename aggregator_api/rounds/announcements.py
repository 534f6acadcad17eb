"""A federation's retained messages: the announcement to all, and each device's invitation.

Both are made from its rows alone, so that they can be made again at any time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from sqlalchemy.orm import Session

from aggregator_api.auth.signing import Signer
from aggregator_api.devices.presence import PresenceCheck
from aggregator_api.rollouts import transitions
from aggregator_api.rollouts.scores import score_of
from aggregator_api.rounds import secure_rounds
from aggregator_api.storage.db import epochs
from aggregator_api.storage.db.models import FederationRow, ParticipationRow, RoundRow
from aggregator_api.storage.db.repositories import (
    current_version,
    find_device,
    invited,
    last_event,
    last_number,
    open_round,
    participation,
)
from federation.plan import Strict
from federation.protocol import topics
from federation.protocol.messages import (
    Acknowledgement,
    Announcement,
    BlobPointer,
    Invitation,
    Notice,
    VersionScore,
)
from federation.protocol.signing import Kind
from federation.rounds.gains import Gains, published
from federation.rounds.server_round import RoundPhase

_STATE_OF_PHASE = {
    RoundPhase.ANNOUNCED: "waiting",  # its broadcasts are still being written
    RoundPhase.COLLECTING: "collecting",
    RoundPhase.AGGREGATING: "aggregating",
}


class Publisher(Protocol):
    """Sends messages without waiting, and sends queued ones after a reconnect."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send a message with QoS 1."""


class Announcer:
    """Publishes, signed, what the server says to devices; its coordinator's lock orders announcements."""

    def __init__(self, publisher: Publisher, signer: Signer, presence: PresenceCheck, *, chunk_bytes: int) -> None:
        self._publisher = publisher
        self._signer = signer
        self._presence = presence
        self._chunk_bytes = chunk_bytes
        self._orders: dict[str, int] = {}  # serial of the order that was announced last

    def announce(self, session: Session, federation: FederationRow) -> None:
        """Publish a federation's retained announcement, and before it invitations and offers to awaited devices."""
        name = federation.name
        for device, invitation in invitations(session, federation):
            self._publish(topics.invitation(name, device), Kind.INVITATION, name, device, invitation, retain=True)
        for device, offer in transitions.offers(session, federation):
            self._publish(topics.offer(name, device), Kind.OFFER, name, device, offer, retain=True)
        self._orders[name] = transitions.newest_serial(session, federation)
        message = announcement(session, federation, chunk_bytes=self._chunk_bytes, expires=self._signer.expires())
        message = message.model_copy(update={"presence_check": self._presence.token_of(name)})
        self._publish(topics.announce(name), Kind.ANNOUNCEMENT, name, "", message, retain=True)

    def retained_for(self, session: Session, federation: FederationRow, device: str) -> list[tuple[Kind, bytes]]:
        """Return one device's signed retained messages from its rows: an invitation, an offer."""
        name = federation.name
        invited = [(Kind.INVITATION, message) for _, message in invitations(session, federation, device)]
        offered = [(Kind.OFFER, message) for _, message in transitions.offers(session, federation, device)]
        return [(kind, self._signer.wrap(kind, name, device, message)) for kind, message in (*invited, *offered)]

    def acknowledge(self, federation: str, device: str, message: Acknowledgement) -> None:
        """Answer a device's upload."""
        self._publish(topics.ack(federation, device), Kind.ACKNOWLEDGEMENT, federation, device, message)

    def notify_device(self, federation: str, device: str, message: Notice) -> None:
        """Tell a device something that it must write into its log."""
        self._publish(topics.notice(federation, device), Kind.NOTICE, federation, device, message)

    def announced_order(self, name: str) -> int | None:
        """Return the serial of the order about releases that this process has announced last; None: it has not yet."""
        return self._orders.get(name)

    def renewal_is_due(self) -> bool:
        """Return True once per half lifetime, when everything must be announced again."""
        return self._signer.renewal_is_due()

    def _publish(
        self, topic: str, kind: Kind, federation: str, device: str, message: Strict, *, retain: bool = False
    ) -> None:
        self._publisher.publish(topic, self._signer.wrap(kind, federation, device, message), retain=retain)


def announcement(
    session: Session, federation: FederationRow, *, chunk_bytes: int, expires: int | None = None
) -> Announcement:
    """Say what a federation is doing now, and until when (Unix time) that holds."""
    row, epoch, plan = open_round(session, federation), epochs.current(session), federation.parsed_plan
    continuous = federation.kind.sums
    version = row.base_version if row and not continuous else current_version(session, federation)
    score = score_of(session, federation, version)
    model = pointer(version.broadcast_sha256, version.broadcast_size, score, version.gains)
    return Announcement.model_validate(
        {
            "federation": federation.name,
            "instance": federation.instance,
            "epoch": epoch.epoch,
            "restored_at": epoch.restored_at,
            "serial": last_event(session, federation),
            "state": _state(federation, row, continuous),
            "round": _number(session, federation, row, continuous),
            "invited": invited(session, row) if row else 0,
            "deadline": row.deadline_at if row else None,
            "plan": plan,
            "continuous": continuous,
            "model": model,
            "feature_model": _pointer_to(federation.feature_model_sha256, federation.feature_model_size),
            "program": _pointer_to(federation.program_sha256, federation.program_size),
            "release": transitions.order(session, federation),
            "revoked": federation.revoked_identities,
            "chunk_bytes": chunk_bytes,
            "created": time.time(),
            "expires": expires,
        }
    )


def invitations(
    session: Session, federation: FederationRow, device: str | None = None
) -> Iterator[tuple[str, Invitation]]:
    """Yield the invitation of each device that the open round still waits for, or of that one alone.

    In the stages of a secure sum after the keys, each has what its device is to answer next.
    """
    row = open_round(session, federation)
    if row is None or row.phase not in (RoundPhase.COLLECTING, RoundPhase.AGGREGATING):
        return
    orders = secure_rounds.orders(session, row, device)
    score, epoch = score_of(session, federation, row.base_version), epochs.current(session).epoch
    for part in row.participations if device is None else _part_of(session, federation, row, device):
        order = orders.get(part.device.name)
        awaited = part.outcome == "waiting" if row.phase == RoundPhase.COLLECTING else order is not None
        if awaited and part.broadcast_sha256 is not None and part.broadcast_size is not None:
            model = pointer(part.broadcast_sha256, part.broadcast_size, score, row.base_version.gains)
            invitation = Invitation(instance=federation.instance, epoch=epoch, round=row.number, model=model, sum=order)
            yield part.device.name, invitation.model_copy(update={"voucher": part.device.voucher})


def _part_of(session: Session, federation: FederationRow, row: RoundRow, device: str) -> list[ParticipationRow]:
    found = find_device(session, federation, device)
    part = participation(session, row, found) if found is not None else None
    return [part] if part is not None else []


def _pointer_to(sha256: str | None, size: int | None) -> BlobPointer | None:
    return None if sha256 is None or size is None else pointer(sha256, size, None)


def pointer(sha256: str, size: int, score: VersionScore | None, gains: Gains | None = None) -> BlobPointer:
    """Point to a broadcast's blob; `score` and `gains` are of the version that it is of."""
    values = {"sha256": sha256, "size": size, "url": f"/v1/blobs/{sha256}", "score": score, "gains": published(gains)}
    return BlobPointer.model_validate(values)


def _number(session: Session, federation: FederationRow, row: RoundRow | None, continuous: bool) -> int:
    """Return the number of the open round, or else of the last one; of a continuous federation that of the next one."""
    if row is not None:
        return row.number
    is_next = continuous and federation.status in ("running", "paused")
    return last_number(session, federation) + is_next


def _state(federation: FederationRow, row: RoundRow | None, continuous: bool) -> str:
    if federation.status != "running":
        return federation.status
    if continuous:
        return "collecting"
    return _STATE_OF_PHASE[RoundPhase(row.phase)] if row else "waiting"
