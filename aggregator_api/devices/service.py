"""An operator's actions on devices (tag, suspend, revoke, delete), and devices' broker accounts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from sqlalchemy import update
from sqlalchemy.orm import Session

from aggregator_api.auth import api_keys
from aggregator_api.core.errors import (
    BrokerError,
    ConflictError,
    NotFoundError,
    UnavailableError,
)
from aggregator_api.devices import contributions, enrolment_tokens, suspension
from aggregator_api.devices.enrolment_tokens import Tags
from aggregator_api.federations import service
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import DeviceRow, DeviceTagRow, FederationRow, UpdateRow
from federation.plan import Strict
from federation.rounds.server_round import DeviceLost, Event

SEPARATOR = "~"
"""Between federation and device in a broker account's name: neither can hold it, while '.' may be in both."""


class DeviceTags(Strict):
    """The groups of a device, all of them."""

    tags: Tags


class BrokerAccounts(Protocol):
    """Gives and takes accounts that may use one device's topics and nothing else."""

    def grant(self, federation: str, device: str, username: str, password: str) -> None:
        """Let the device in with this password from now on; an earlier one is void.

        Raises:
            BrokerError: if the broker does not answer or refuses.
        """

    def revoke(self, username: str) -> None:
        """Delete the account and end its connections; one that does not exist is no error.

        Raises:
            BrokerError: if the broker does not answer or refuses.
        """


class NoAccounts:
    """Accounts at a broker without logins, such as the embedded one."""

    def grant(self, federation: str, device: str, username: str, password: str) -> None:
        """Do nothing: the broker asks for no password."""

    def revoke(self, username: str) -> None:
        """Do nothing: the broker has no accounts."""


def username(federation: str, device: str) -> str:
    """Return the name of a device's account at the broker."""
    return f"{federation}{SEPARATOR}{device}"


def change(session: Session, federation: FederationRow, row: DeviceRow, tags: Iterable[str]) -> None:
    """Put a device into these groups and no others, and tell it as an event."""
    put(session, row, tags)
    repositories.journal(session, federation, "device.tags", device=row.name, detail=" ".join(row.tags) or "none")


def put(session: Session, row: DeviceRow, tags: Iterable[str]) -> None:
    """Put a device into these groups and no others."""
    present = {tag.tag: tag for tag in row.tag_rows}
    row.tag_rows = [present.get(tag) or DeviceTagRow(tag=tag) for tag in sorted(set(tags))]
    session.flush()


class Rounds(Protocol):
    """What rounds must hear of devices."""

    def apply_event(self, name: str, event: Event) -> None:
        """Apply an event to a federation's open round."""

    def devices_changed(self, name: str) -> None:
        """Say that a federation may have other devices to draw from."""


class DeviceService:
    """Lets devices in, puts them out and into groups."""

    def __init__(
        self,
        database: Database,
        rounds: Rounds,
        accounts: BrokerAccounts,
        forget_device: Callable[[str, str], None],
    ) -> None:
        """Store the parts; `forget_device` ends a device's stream and drops its partial uploads."""
        self._database = database
        self._rounds = rounds
        self._accounts = accounts
        self._forget_device = forget_device

    def approve(self, name: str, device: str) -> None:
        """Let a device that has shown a token and a key in; approving it twice changes nothing.

        Raises:
            ConflictError: if it has no key, or was revoked.
        """
        with self._database.write() as session:
            admit_device(session, *find(session, name, device))

    def revoke(self, name: str, device: str) -> None:
        """Put a device out: its keys, tokens and broker account are void, and no round waits for it.

        What a round has accepted of it stays. Revoking it twice changes nothing, but tries the broker once more.

        Raises:
            UnavailableError: if the broker does not delete the account; nothing is taken from the device all the same.
        """
        with self._database.write() as session:
            revoke_device_credentials(session, *find(session, name, device))
        self._rounds.apply_event(name, DeviceLost(device))
        self._forget_device(name, device)
        try:
            self._accounts.revoke(username(name, device))
        except BrokerError as error:
            raise UnavailableError(
                f"the device is revoked here, but the broker did not delete its account: {error}; revoke it again"
            ) from error

    def reinstate(self, name: str, device: str) -> None:
        """Let a suspended device take part again; a round that waits for devices may begin. Twice changes nothing.

        Raises:
            NotFoundError: if there is no such device.
        """
        with self._database.write() as session:
            suspension.reinstate(session, *find(session, name, device))
        self._rounds.devices_changed(name)

    def withdraw(self, name: str, device: str) -> None:
        """Take a device's sums out of a continuous federation, from the next version on. Twice changes nothing.

        Raises:
            NotFoundError: if there is no such device.
            ConflictError: if it has no sums there.
        """
        with self._database.write() as session:
            contributions.withdraw(session, *find(session, name, device))
        self._rounds.devices_changed(name)

    def set_tags(self, name: str, device: str, wanted: Iterable[str]) -> None:
        """Put a device into these groups and no others; a round that waits for devices of a group may begin.

        Raises:
            NotFoundError: if there is no such device.
        """
        with self._database.write() as session:
            federation, row = find(session, name, device)
            change(session, federation, row, wanted)
        self._rounds.devices_changed(name)


def admit_device(session: Session, federation: FederationRow, row: DeviceRow) -> None:
    """Approve a device inside the caller's transaction.

    Raises:
        ConflictError: if it has no key, or was revoked.
    """
    if row.enrolment == "open":
        raise ConflictError(f"the device {row.name!r} has presented no key; make a token with which it can enrol")
    if row.enrolment == "revoked":
        raise ConflictError(f"the device {row.name!r} was revoked; make a token for it to return")
    if row.enrolment == "pending":
        row.enrolment = "approved"
        repositories.journal(session, federation, "device.approved", device=row.name, detail="by the operator")


def find(session: Session, name: str, device: str) -> tuple[FederationRow, DeviceRow]:
    """Return a federation's device.

    Raises:
        NotFoundError: if one of them does not exist.
    """
    federation = service.get_federation(session, name)
    row = repositories.find_device(session, federation, device)
    if row is None:
        raise NotFoundError(f"federation {name!r} has no device {device[:80]!r}")
    return federation, row


def revoke_device_credentials(session: Session, federation: FederationRow, row: DeviceRow) -> None:
    """Revoke all of a device's credentials in the database, inside the caller's transaction; the broker follows."""
    if row.enrolment == "revoked":
        return
    row.enrolment, row.state = "revoked", "offline"
    api_keys.revoke_of_device(session, row)
    enrolment_tokens.revoke_for(session, federation, row.name, time.time())
    deferred = update(UpdateRow).where(UpdateRow.device_id == row.id, UpdateRow.status == "deferred")
    session.execute(deferred.values(status="refused", reason="the device was revoked"))
    repositories.journal(session, federation, "device.revoked", device=row.name, detail="by the operator")
