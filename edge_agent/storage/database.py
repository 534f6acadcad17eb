"""SQLite for this package: WAL, full durability, one transaction per method, and readable errors.

A full disk is `DiskFullError` (nothing was changed, try again when there is room), a file that another program holds is
`LockedError` (the same, when it is free); anything else that SQLite says about the file is `DamagedError`.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from edge_agent.errors import DamagedError, DiskFullError, LockedError, StoreError
from gaitway.files import private_file, private_folder

log = logging.getLogger(__name__)

BUSY_S = 30.0
PATIENT_S = 0.25
"""Whoever waits by a `Wait` is asked so often, so that a stop is noticed."""
VERSION = 2
"""In the file's `user_version`; raised when a program of an earlier one could not read what this one writes."""
ERROR_TEXTS = {
    13: "database or disk is full",
    10: "disk I/O error",
    5: "database is locked",
    6: "database table is locked",
    8: "attempt to write a readonly database",
    14: "unable to open database file",
}
"""SQLite's codes (sqlite.org/rescode.html) and how it says them: Python 3.10 has no `sqlite_errorcode`."""
FULL, LOCKED, NOT_DAMAGED = (13, 10), (5, 6), (8, 14)

Result = TypeVar("Result")
Wait = Callable[[LockedError | None], None]
"""Called before each further try with what keeps the file locked, which it raises to give up; at last with None."""


class LockPatience:
    """Waits while another program holds the file, until `is_over`; says so once, and when the file is free again."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Wait for nothing yet; `tell` is called before each try with what is waited for."""
        self.is_over = False
        self._is_waiting = False
        self._tell = tell

    def __call__(self, error: LockedError | None) -> None:
        """Take note of a file that is locked, or free again (None); raises the error where patience is over."""
        if error is None:
            self._is_waiting = False
            log.info("database available again")
            return
        if self.is_over:
            raise error
        if not self._is_waiting:
            self._is_waiting = True
            log.warning("%s; waiting for it, and keeping new data in memory", error)
        self._tell(f"waiting: {error}")


def open_database(path: Path, schema: str, *, busy_s: float = BUSY_S) -> sqlite3.Connection:
    """Open a database, or begin one with this schema.

    busy_s: how long each statement waits for another program that holds the file.

    Raises:
        LockedError: if another program holds the file for longer.
        DiskFullError: if there is no room to begin one.
        DamagedError: if the file is no database, or a broken one.
        StoreError: if another version of this program has written it, whose tables differ.
    """
    private_folder(path.parent)
    with sqlite_errors(path):
        with suppress(OSError):  # SQLite says what is wrong
            private_file(path)
        db = sqlite3.connect(path, timeout=busy_s)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA foreign_keys=ON")
            _check_version(db, path)
            with db:
                db.executescript(schema)
        except (sqlite3.Error, StoreError):
            db.close()
            raise
    return db


def _check_version(db: sqlite3.Connection, path: Path) -> None:
    # in one statement: another process may begin the file meanwhile
    query = "SELECT user_version, EXISTS (SELECT 1 FROM sqlite_master) FROM pragma_user_version"
    version, begun = db.execute(query).fetchone()
    if version > VERSION:
        raise StoreError(f"{path} is of a later version of this program; install that one again")
    if begun and version < VERSION:
        raise StoreError(f"{path} was made by a version before 0.3.0, which can't be read; move it away to start over")
    if version == 0:
        # before the tables: whoever opens the file in between, or after a crash, finds no tables without a version
        db.execute(f"PRAGMA user_version={VERSION}")


def check(db: sqlite3.Connection, path: Path) -> None:
    """Read the whole file once; raises DamagedError if a page is not as SQLite left it."""
    with sqlite_errors(path):
        found = [str(row[0]) for row in db.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise DamagedError(f"{path} is damaged: {'; '.join(found)}")


@contextmanager
def transaction(db: sqlite3.Connection, path: Path, wait: Wait | None = None) -> Iterator[sqlite3.Connection]:
    """Commit all or nothing, durable at the end; raises DiskFullError, LockedError, DamagedError or StoreError."""
    with sqlite_errors(path), db:
        patiently(lambda: db.execute("BEGIN IMMEDIATE"), path, wait)
        yield db


def patiently(call: Callable[[], Result], path: Path, wait: Wait | None) -> Result:
    """Return what a call returns; while another program holds the file, ask `wait` and try again."""
    waited = False
    while True:
        try:
            with sqlite_errors(path):
                result = call()
            break
        except LockedError as error:
            if wait is None:
                raise
            waited = True
            wait(error)
    if waited and wait is not None:
        wait(None)
    return result


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Say what SQLite's errors mean for this file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = error_code(error)
        if code in FULL:
            raise DiskFullError(f"no space on the disk for {path}: {error}; free some space") from error
        if code in LOCKED:
            raise LockedError(f"{path} is locked by another program; stop it if this lasts ({error})") from error
        if code in NOT_DAMAGED:
            raise StoreError(f"{path} cannot be used: {error}") from error
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        raise DamagedError(f"{path} cannot be used: {error}; move it away to start anew") from error


def error_code(error: sqlite3.DatabaseError) -> int:
    """Return SQLite's primary code; of Python 3.10, which keeps none, one of `ERROR_TEXTS` by its text, else 0."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF
    return next((number for number, text in ERROR_TEXTS.items() if str(error).startswith(text)), 0)
