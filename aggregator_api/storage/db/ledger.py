"""The ledger of ended access, in a file outside backups, so that no restore brings the access back.

Triggers of the database note each key, token and device whose access ends, whichever statement ends it, in the table
`ended_access`; what takes a device's sums out of a continuous federation notes that there as well. A transaction
appends these notes to the file, and the file is on the disk before the transaction is committed. The database keeps the
size of the ledger that it has seen: what a restored database lacks are the lines after that.

The first line of the file names the ledger, each other line is an entry (JSON, about 130 bytes). An entry names its
subject by a sha256 alone. Nothing in the file ever changes, so a copy of it is whole at any time. A power cut may tear
the last line: its transaction was not committed, and the next one drops it.
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
from typing import BinaryIO, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import LedgerError, LedgerWriteError
from aggregator_api.storage.db.models import EndedAccessRow, LedgerRow
from gaitway.files import FILE, private_folder, write_file

NAME = "revocations.jsonl"
MAX_LINE_BYTES = 512

Kind = Literal["key", "token", "device", "device-deleted", "withdrawn"]
"""device: its keys, its tokens and its key pair open nothing any more; device-deleted: its rows are gone as well;
withdrawn: its sums were taken out of a continuous federation."""
Line = TypeVar("Line", bound=BaseModel)


class LedgerHeader(BaseModel):
    """The first line of a ledger: its id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger: str = Field(pattern=r"^[0-9a-f]{32}$")
    ledger_version: Literal[2] = 2


class LedgerEntry(BaseModel):
    """An access that has ended, and when."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    subject: str = Field(pattern=r"^[0-9a-f]{64}$")
    at: float


class LedgerContents(NamedTuple):
    """A ledger's id, its size in bytes without a torn line, and the entries that were asked for."""

    id: str
    size: int
    entries: tuple[LedgerEntry, ...]


def subject_of(kind: str, name: str, federation: str = "") -> str:
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
        with self._write_errors():
            private_folder(self.path.parent)
            if self.path.exists():
                self.path.replace(self.path.with_name(f"{NAME}.{int(time.time())}-{secrets.token_hex(2)}"))
            write_file(self.path, _line(header), mode=FILE)
        return header.ledger

    def read(self, start: int = 0) -> LedgerContents:
        """Read the entries after the first `start` bytes.

        Raises:
            LedgerError: if it is not there, cannot be read, or is damaged.
        """
        try:
            with self.path.open("rb") as file:
                id, end = self._id(file), _end_of_lines(file)
                file.seek(max(file.tell(), start))
                lines = file.read(max(0, end - file.tell())).splitlines()
        except OSError as error:
            raise LedgerError(f"the ledger {self.path} cannot be read: {error.strerror}") from error
        return LedgerContents(id, end, tuple(self._parsed(LedgerEntry, line) for line in lines))

    def append(self, id: str, size: int, ended: Sequence[EndedAccessRow]) -> int:
        """Write entries to the disk, and return the ledger's size after them.

        `id` and `size` are the database's: the ledger's id, and the size up to which the database has seen it.

        Raises:
            LedgerWriteError: if it cannot be written, or is not the one of this database.
        """
        now = time.time()
        entries = (
            LedgerEntry.model_validate(
                {"kind": row.kind, "subject": subject_of(row.kind, row.subject, row.federation), "at": now}
            )
            for row in ended
        )
        lines = b"".join(map(_line, entries))
        with self._write_errors(), self.path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            found, end = self._id(file), _end_of_lines(file)
            if wrong := mismatch(id, size, found, end):
                raise LedgerWriteError(f"the ledger {self.path} {wrong}")
            file.seek(end)
            file.truncate()
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        return end + len(lines)

    def _id(self, file: BinaryIO) -> str:
        """Read the first line, and leave the file behind it."""
        return self._parsed(LedgerHeader, file.readline(MAX_LINE_BYTES)).ledger

    def _parsed(self, model: type[Line], line: bytes) -> Line:
        try:
            return model.model_validate_json(line)
        except ValidationError as error:
            raise LedgerError(f"the ledger {self.path} is damaged in the line {line[:40]!r}") from error

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        """Raise LedgerWriteError for what fails of the file system, and for a damaged ledger."""
        try:
            yield
        except OSError as error:
            raise LedgerWriteError(
                f"the ledger {self.path} cannot be written: {error.strerror}; nothing was changed. Make its folder "
                "writable, or name another in ledger_dir"
            ) from error
        except LedgerWriteError:
            raise
        except LedgerError as error:
            raise LedgerWriteError(f"{error}; nothing was changed") from error


def _end_of_lines(file: BinaryIO) -> int:
    """Return the size of the file without a torn line at its end, and leave the file where it is."""
    place, size, length = file.tell(), file.seek(0, os.SEEK_END), MAX_LINE_BYTES
    while True:
        start = file.seek(max(0, size - length))
        end = start + file.read().rfind(b"\n") + 1
        if end > start or not start:
            file.seek(place)
            return end
        length *= 2  # a power cut may leave many zeros


def mismatch(id: str, size: int, found_id: str, found: int) -> str:
    """Say why a ledger is not the one of a database; empty if it is."""
    if found_id != id:
        return (
            f"is another server's ({found_id[:8]}, not {id[:8]}): all server processes of one database share one "
            "ledger_dir"
        )
    return f"is older than the database: it ends at byte {found}, not at {size}" if found < size else ""


def flush(session: Session, ledger: Ledger) -> None:
    """Write what the present transaction has ended into the ledger, before it is committed.

    Raises:
        LedgerWriteError: if that cannot be written; the transaction must not be committed then.
    """
    if session.connection().exec_driver_sql("SELECT 1 FROM ended_access LIMIT 1").first() is None:
        return
    noted, now = session.scalars(select(EndedAccessRow).order_by(EndedAccessRow.id)).all(), time.time()
    if ended := [row for row in noted if row.until is None or row.until > now]:
        state = position(session)
        state.ledger = state.ledger or begun(ledger)
        state.size = ledger.append(state.ledger, state.size, ended)
    session.execute(delete(EndedAccessRow).where(EndedAccessRow.id <= noted[-1].id))


def begun(ledger: Ledger) -> str:
    """Return the id of a ledger for a database that has none yet: of the one that is there, or of a new one."""
    return ledger.read().id if ledger.exists() else ledger.begin()


def position(session: Session) -> LedgerRow:
    """Return which ledger a database has, and how much of it the database has seen."""
    return session.scalars(select(LedgerRow)).one()


def _line(written: BaseModel) -> bytes:
    return written.model_dump_json().encode() + b"\n"
