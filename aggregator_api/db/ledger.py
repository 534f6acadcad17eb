"""The ledger: what access has ended, in a file that no backup holds, so that no restore gives the access back.

Triggers of the database note each key, token and device whose access ends, whichever statement ends it, in the table
`ended_access`; what takes a device's sums out of a continuous federation notes that there as well. A transaction
appends these notes to the file, and the file is on the disk before the transaction is committed. Each entry has a
number, and the database keeps that of its newest one: what a restored database lacks are the entries above its own
number.

The first line of the file names the ledger, each other line is an entry (JSON). An entry names its subject by a sha256
alone. A line that was cut off by a power cut is the last one; its transaction was not committed, and it is dropped.
Where the file has grown to twice its size, it is written anew with the newest entry about each subject, and without
those about keys and tokens that have expired.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from aggregator_api.db.models import EndedAccessRow, LedgerRow
from aggregator_api.errors import LedgerError, LedgerWriteError
from gaitway.files import sync_folder, write_file
from gaitway.private_files import FILE, private_folder

NAME = "revocations.jsonl"
LOCK = "revocations.lock"
MAX_LINE_BYTES = 512
COMPACT_BYTES = 1 << 20
"""A file that has grown by less than so much is not written anew."""
EXPIRED_S = 86_400.0
"""An entry about what has expired is kept for so long, for clocks that differ."""

Kind = Literal["key", "token", "device", "device-deleted", "withdrawn"]
"""device: its keys, its tokens and its key pair open nothing any more; device-deleted: its rows are gone as well;
withdrawn: its sums were taken out of a continuous federation."""
_SHA256 = r"^[0-9a-f]{64}$"
Line = TypeVar("Line", bound=BaseModel)


class LedgerHeader(BaseModel):
    """The first line of a ledger: its id; its newest number and its size in bytes when it was last written anew."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger: str = Field(pattern=r"^[0-9a-f]{32}$")
    ledger_version: Literal[1] = 1
    number: int = Field(default=0, ge=0)
    size: int = Field(default=0, ge=0)


class LedgerEntry(BaseModel):
    """An access that has ended at a time; where it would have ended by itself, `until` says when."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=1)
    kind: Kind
    subject: str = Field(pattern=_SHA256)
    at: float
    until: float | None = None


class LedgerContents(NamedTuple):
    """A whole ledger; `number` is that of its newest entry."""

    id: str
    number: int
    entries: tuple[LedgerEntry, ...]


def subject_of(kind: Kind, name: str, federation: str = "") -> str:
    """Return what stands for a key (its prefix), a token (its sha256) or a device (its name) in the ledger."""
    table = "device" if kind in ("device-deleted", "withdrawn") else kind
    return hashlib.sha256(json.dumps([table, federation, name]).encode()).hexdigest()


class Ledger:
    """The file in a folder of its own, which several processes may write."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path.exists()

    def begin(self) -> str:
        """Begin a new ledger and return its id; one that is there is renamed, never removed.

        Raises:
            LedgerWriteError: if it cannot be written.
        """
        header = LedgerHeader(ledger=secrets.token_hex(16))
        with self._locked():
            if self.path.exists():
                self.path.replace(self.path.with_name(f"{NAME}.{int(time.time())}-{secrets.token_hex(2)}"))
            write_file(self.path, _line(header), mode=FILE)
        return header.ledger

    def read(self) -> LedgerContents:
        """Read all of it.

        Raises:
            LedgerError: if it is not there, cannot be read, or is damaged.
        """
        try:
            with self.path.open("rb") as file:
                header = self._header(file)
                entries = tuple(self._entries(file))
        except OSError as error:
            raise LedgerError(f"the ledger {self.path} cannot be read: {error.strerror}") from error
        newest = max((entry.number for entry in entries), default=0)
        return LedgerContents(header.ledger, max(header.number, newest), entries)

    def append(self, id: str, number: int, ended: Sequence[EndedAccessRow]) -> int:
        """Write entries to the disk, and return the number of the last one.

        `id` and `number` are the database's: the ledger's id, and the newest number that the database has seen.

        Raises:
            LedgerWriteError: if it cannot be written, or is not the one of this database.
        """
        with self._locked(), open(self.path, "r+b") as file:
            header = self._header(file)
            newest = max(header.number, self._drop_cut_off_line(file))
            if header.ledger != id or newest < number:
                raise LedgerWriteError(f"the ledger {self.path} {mismatch(id, number, header.ledger, newest)}")
            now = time.time()
            for count, row in enumerate(ended, start=1):
                kind = cast(Kind, row.kind)
                subject = subject_of(kind, row.subject, row.federation)
                entry = LedgerEntry(number=newest + count, kind=kind, subject=subject, at=now, until=row.until)
                file.write(_line(entry))
            file.flush()
            os.fsync(file.fileno())
            if file.tell() > 2 * header.size + COMPACT_BYTES:
                self._write_anew(now)
        return newest + len(ended)

    def _write_anew(self, now: float) -> None:
        """Keep the newest entry about each subject; the caller holds the lock."""
        contents = self.read()
        newest = {(entry.kind, entry.subject): entry for entry in contents.entries}
        kept = sorted(newest.values(), key=lambda entry: entry.number)
        lines = b"".join(_line(entry) for entry in kept if entry.until is None or entry.until + EXPIRED_S > now)
        header = LedgerHeader(ledger=contents.id, number=contents.number, size=len(lines))
        write_file(self.path, _line(header) + lines, mode=FILE)

    def _header(self, file: BinaryIO) -> LedgerHeader:
        file.seek(0)
        return self._parsed(LedgerHeader, file.readline(MAX_LINE_BYTES), 1)

    def _entries(self, file: BinaryIO) -> Iterator[LedgerEntry]:
        before, at = 0, 1
        while line := file.readline(MAX_LINE_BYTES):
            at += 1
            if not line.endswith(b"\n") and not file.read(1):
                return  # cut off: its transaction was never committed
            entry = self._parsed(LedgerEntry, line, at)
            if entry.number <= before:
                raise LedgerError(f"the ledger {self.path} is damaged: line {at} is out of order")
            before = entry.number
            yield entry

    def _parsed(self, model: type[Line], line: bytes, at: int) -> Line:
        try:
            return model.model_validate_json(line)
        except ValidationError as error:
            raise LedgerError(f"the ledger {self.path} is damaged in line {at}") from error

    def _drop_cut_off_line(self, file: BinaryIO) -> int:
        """Go to the end of the last whole line, drop what follows it, and return its number (0: the header's)."""
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - 2 * MAX_LINE_BYTES)
        file.seek(start)
        tail = file.read()
        whole = tail.rfind(b"\n") + 1
        file.seek(start + whole)
        file.truncate()
        last = tail[:whole].rstrip(b"\n").rpartition(b"\n")[2]
        return 0 if b'"ledger"' in last else self._parsed(LedgerEntry, last, -1).number

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from writing; what fails of the file system fails in words."""
        try:
            private_folder(self.path.parent)
            lock = os.open(self.path.with_name(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
                sync_folder(self.path.parent)
            finally:
                os.close(lock)
        except OSError as error:
            raise LedgerWriteError(
                f"the ledger {self.path} cannot be written: {error.strerror}; nothing was changed. Make its folder "
                "writable, or name another in ledger_dir"
            ) from error
        except LedgerError as error:
            raise LedgerWriteError(f"{error}; nothing was changed") from error


def mismatch(id: str, number: int, found_id: str, found: int) -> str:
    """Say why a ledger is not the one of a database; empty if it is."""
    if found_id != id:
        return (
            f"is another server's ({found_id[:8]}, not {id[:8]}): all server processes of one database share one "
            "ledger_dir"
        )
    return f"is older than the database: it ends at {found}, not at {number}" if found < number else ""


def flush(session: Session, ledger: Ledger) -> None:
    """Write what the present transaction has ended into the ledger, before it is committed.

    Raises:
        LedgerWriteError: if that cannot be written; the transaction must not be committed then.
    """
    noted, now = session.scalars(select(EndedAccessRow).order_by(EndedAccessRow.id)).all(), time.time()
    if not noted:
        return
    if ended := [row for row in noted if row.until is None or row.until > now]:
        state = position(session)
        state.ledger = state.ledger or begun(ledger)
        state.number = ledger.append(state.ledger, state.number, ended)
    session.execute(delete(EndedAccessRow).where(EndedAccessRow.id <= noted[-1].id))


def begun(ledger: Ledger) -> str:
    """Return the id of a ledger for a database that has none yet: of the one that is there, or of a new one."""
    return ledger.read().id if ledger.exists() else ledger.begin()


def position(session: Session) -> LedgerRow:
    """Return which ledger a database has, and up to which number."""
    return session.scalars(select(LedgerRow)).one()


def _line(written: BaseModel) -> bytes:
    return written.model_dump_json(exclude_none=True).encode() + b"\n"
