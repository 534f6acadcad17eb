"""A device's trust: only the server whose key it got at enrolment, and nothing older than what it has accepted.

Signatures are verified before a message is parsed. A device that has not enrolled has no key, and believes its broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edge_agent.errors import TrustError
from edge_agent.storage.state_store import NEWEST_ANNOUNCEMENT, StateStore
from federation.protocol.messages import Announcement
from federation.protocol.signing import Kind, to_sign, unwrap


class AnnouncementOrder(NamedTuple):
    """The order of announcements."""

    epoch: int
    serial: int


class Trust:
    """The check of one device of one federation; any thread may open messages, the store's thread may `check`."""

    def __init__(
        self, federation: str, device: str, server_key: bytes | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._federation, self._device, self._clock = federation, device, clock
        self._key = Ed25519PublicKey.from_public_bytes(server_key) if server_key else None

    @property
    def is_enrolled(self) -> bool:
        """Whether the device knows its server's key."""
        return self._key is not None

    def open(self, kind: Kind, payload: bytes) -> bytes:
        """Return the body of a message that the server has signed for this device, or for all of its federation.

        Raises:
            TrustError: if it has not.
            WireError: if the message begins as a signed one and is none.
        """
        envelope = unwrap(payload)
        if self._key is None:
            return envelope.body
        if envelope.signature is None:
            raise TrustError(
                f"the {kind} is not signed, but this device has enrolled and accepts only its server's signed messages"
            )
        device = "" if kind is Kind.ANNOUNCEMENT else self._device
        try:
            self._key.verify(envelope.signature, to_sign(kind, self._federation, device, envelope.body))
        except InvalidSignature as error:
            raise TrustError(
                f"the {kind} is not signed by this device's server for federation {self._federation!r}; "
                f"if the server has a new key, enrol this device anew"
            ) from error
        return envelope.body

    def check(self, announcement: Announcement, store: StateStore) -> None:
        """Let an announcement pass that holds now and is not older than another, and remember it as the newest.

        A device without a key knows a server by its instance alone: another one may count from 1 again.

        Raises:
            TrustError: saying what is wrong with it.
        """
        order, newest = AnnouncementOrder(announcement.epoch, announcement.serial), newest_of(store)
        enrolled = self._key is not None
        if order.epoch < newest.epoch and (enrolled or store.get("identity").startswith(announcement.instance)):
            raise TrustError(
                f"the announcement is of the server's epoch {order.epoch}, and this device has seen {newest.epoch}: "
                f"it goes back to no older one; if the server was restored by a wrong clock, its operator begins an "
                f"epoch above {newest.epoch}"
            )
        if enrolled:
            self._check_time(announcement)
        if enrolled and order < newest:
            raise TrustError(
                f"the announcement is number {order.serial}, and this device has seen {newest.serial}: somebody "
                f"repeats an old one"
            )
        if order != newest and (enrolled or order.epoch != newest.epoch):
            store.put(**{NEWEST_ANNOUNCEMENT: f"{order.epoch} {order.serial}"})

    def _check_time(self, announcement: Announcement) -> None:
        if announcement.expires is None:
            raise TrustError("the announcement has no expiry")
        late_s = self._clock() - announcement.expires
        if late_s > 0:
            raise TrustError(
                f"the announcement expired {late_s:.0f} s ago by this device's clock; "
                f"check the clock, or the server has not announced for long"
            )


def newest_of(store: StateStore) -> AnnouncementOrder:
    """Return what the device has believed last."""
    epoch, _, serial = (store.get(NEWEST_ANNOUNCEMENT) or "0 0").partition(" ")
    return AnnouncementOrder(int(epoch), int(serial))
