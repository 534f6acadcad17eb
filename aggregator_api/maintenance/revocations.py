"""Replays the ledger on a restored database: access that ended after the backup.

Without the ledger nobody can tell which keys, tokens and devices of the backup still hold: all of them are held until
an operator confirms each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from aggregator_api.core.errors import ConfigError, ConflictError, LedgerError
from aggregator_api.devices import contributions
from aggregator_api.devices.service import revoke_device_credentials
from aggregator_api.maintenance import retention
from aggregator_api.storage.db import audit
from aggregator_api.storage.db import ledger as ledgers
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.ledger import Ledger, LedgerContents, LedgerEntry, subject_of
from aggregator_api.storage.db.models import CredentialRow, DeviceRow, EnrolmentTokenRow, FederationRow, WebSessionRow

log = logging.getLogger(__name__)


class ReplayResult(NamedTuple):
    """What was ended again, or (`reason`: why) held.

    devices: those whose account the broker must not keep; withdrawn: devices whose sums were taken out again.
    """

    keys: int = 0
    tokens: int = 0
    devices: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    withdrawn: int = 0

    def __str__(self) -> str:
        """Say it in words."""
        counted = f"{self.keys} keys, {self.tokens} tokens and {len(self.devices)} devices"
        if self.reason:
            return f"{counted} wait to be confirmed, as {self.reason}"
        sums = f"; the sums of {self.withdrawn} devices were taken out again" if self.withdrawn else ""
        return f"{counted} are void since{sums}"


def catch_up(database: Database, ledger: Ledger) -> None:
    """Bring a database to where its ledger is, at a server's start; one that has no ledger yet begins it.

    Raises:
        ConfigError: if the ledger is not the one of this database.
    """
    with database.write() as session:
        state = ledgers.position(session)
        try:
            state.ledger = state.ledger or ledgers.begun(ledger)
            found = contents(session, ledger)
        except LedgerError as error:
            raise ConfigError(
                f"{error}. Set ledger_dir to where the ledger lies. If the database is an older copy: `new-epoch`. If "
                "the ledger is lost and the database is the newest: `new-ledger`"
            ) from error
        state.size = found.size
        if found.entries:
            result = _apply(session, found)
            log.warning("ledger ahead of the database, by a restore or a crash: %s", result)
        ledgers.flush(session, ledger)


def replay(session: Session, ledger: Ledger) -> ReplayResult:
    """Revoke again what ended since a backup, inside the caller's transaction; without the ledger, hold everything.

    Browsers' sessions end in any case: they are younger than a day, and a login brings another.
    """
    session.execute(delete(WebSessionRow))
    try:
        result = _apply(session, contents(session, ledger))
    except LedgerError as error:
        result = _hold(session, str(error))
        renew(session, ledger)
    ledgers.flush(session, ledger)
    return result


def renew(session: Session, ledger: Ledger) -> None:
    """Begin a new ledger; backups from before it cannot be checked any more."""
    state = ledgers.position(session)
    state.ledger, state.size = ledger.begin(), 0


def renew_ledger(database: Database, ledger: Ledger) -> None:
    """Begin a new ledger for a database whose own is lost."""
    with database.write() as session:
        renew(session, ledger)
        audit.record(session, "server.new-ledger", actor=audit.operating_user())


def contents(session: Session, ledger: Ledger) -> LedgerContents:
    """Read the ledger of a database: the entries that the database has not seen.

    Raises:
        LedgerError: if it is not there, damaged, another server's, or older than the database.
    """
    state = ledgers.position(session)
    if state.ledger is None:
        raise LedgerError("the database is from before there was a ledger")
    found = ledger.read(state.size)
    if wrong := ledgers.mismatch(state.ledger, state.size, found.id, found.size):
        raise LedgerError(f"the ledger {ledger.path} {wrong}")
    return found


def _apply(session: Session, found: LedgerContents) -> ReplayResult:
    ended = found.entries
    withdrawn = contributions.withdraw_again(session, _subjects(ended, "withdrawn"))
    result = ReplayResult(
        _void(session, CredentialRow, _subjects(ended, "key")),
        _void(session, EnrolmentTokenRow, _subjects(ended, "token")),
        tuple(_end_devices(session, _subjects(ended, "device"), _subjects(ended, "device-deleted"))),
        withdrawn=withdrawn,
    )
    ledgers.position(session).size = found.size
    return result


def _subjects(entries: Iterable[LedgerEntry], kind: ledgers.Kind) -> set[str]:
    return {entry.subject for entry in entries if entry.kind == kind}


def _void(session: Session, table: type[CredentialRow] | type[EnrolmentTokenRow], subjects: set[str]) -> int:
    """Revoke the keys or tokens of these subjects, and return how many held before."""
    if not subjects:
        return 0
    kind: ledgers.Kind = "key" if table is CredentialRow else "token"
    name = CredentialRow.prefix if table is CredentialRow else EnrolmentTokenRow.token_sha256
    holding = session.execute(select(table.id, name).where(table.revoked_at.is_(None))).all()
    ids = [id for id, value in holding if subject_of(kind, value) in subjects]
    for first in range(0, len(ids), 1000):
        void = update(table).where(table.id.in_(ids[first : first + 1000]))
        session.execute(void.values(revoked_at=time.time()))
    return len(ids)


def _end_devices(session: Session, revoked: set[str], deleted: set[str]) -> Iterable[tuple[str, str]]:
    """Put devices out again, and delete those that were deleted; return their federations and names."""
    if not revoked | deleted:
        return
    query = select(FederationRow, DeviceRow).join(DeviceRow, DeviceRow.federation_id == FederationRow.id)
    names = [(federation.name, device.name) for federation, device in session.execute(query)]
    for federation, device in names:
        subject = subject_of("device", device, federation)
        if subject in deleted | revoked:
            _end_device(session, federation, device, delete_rows=subject in deleted)
            yield federation, device


def _end_device(session: Session, federation: str, device: str, *, delete_rows: bool) -> None:
    found = select(FederationRow, DeviceRow).join(DeviceRow, DeviceRow.federation_id == FederationRow.id)
    home, row = session.execute(found.where(FederationRow.name == federation, DeviceRow.name == device)).one()
    revoke_device_credentials(session, home, row)
    if not delete_rows:
        return
    try:
        retention.require_no_open_part(session, home, row)
        retention.remove_device(session, home, row, dry_run=False)
    except ConflictError as error:
        log.warning("deleted device only revoked device=%s federation=%s: %s", device, federation, error)


def _hold(session: Session, reason: str) -> ReplayResult:
    """Let nothing of the backup open anything until an operator confirms it.

    Devices wait for approval again, and claim new credentials once they have it.
    """
    now, ours = time.time(), CredentialRow.device_id.is_(None)
    held = (CredentialRow.revoked_at.is_(None), CredentialRow.held_at.is_(None))
    session.execute(update(CredentialRow).where(~ours, CredentialRow.revoked_at.is_(None)).values(revoked_at=now))
    session.execute(update(CredentialRow).where(ours, *held).values(held_at=now))
    unused = (EnrolmentTokenRow.revoked_at.is_(None), EnrolmentTokenRow.used_at.is_(None))
    session.execute(update(EnrolmentTokenRow).where(*unused).values(held_at=now))
    session.execute(update(DeviceRow).where(DeviceRow.enrolment == "approved").values(enrolment="pending"))
    pending = select(FederationRow.name, DeviceRow.name).join(DeviceRow, DeviceRow.federation_id == FederationRow.id)
    devices = session.execute(pending.where(DeviceRow.enrolment == "pending")).all()
    return ReplayResult(
        session.scalar(select(func.count()).where(CredentialRow.held_at.is_not(None))) or 0,
        session.scalar(select(func.count()).where(EnrolmentTokenRow.held_at.is_not(None), *unused)) or 0,
        tuple((federation, device) for federation, device in devices),
        reason,
    )
