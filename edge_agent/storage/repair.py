"""Repairs a damaged windows database: sets it aside, and copies what is readable into a new one."""

from __future__ import annotations

import math
import sqlite3
from contextlib import suppress
from pathlib import Path

from edge_agent.errors import DamagedError
from edge_agent.storage.database import BUSY_S
from edge_agent.storage.window_store import CHANNELS, FILE_NAME, SUSPECT, WindowStore

DAMAGED_FILE = "windows.damaged.sqlite"
BATCH = 256
MARKS = ",".join("?" * 9)
COLUMNS = "x, activity, start_s, end_s, session, pipeline, origin, at"


def open_checked(folder: Path, *, busy_s: float = BUSY_S) -> tuple[WindowStore, str]:
    """Open the windows after reading the file once; with it, what was done if it was broken, else ''.

    Only the one thread that writes windows calls this. The broken file stays as windows.damaged.sqlite, the last
    one only, for whoever wants to look at it.

    Raises:
        DiskFullError: if there is no room for a fresh one.
        LockedError: if another program holds the file for longer than `busy_s`.
    """
    try:
        store = WindowStore(folder, busy_s=busy_s)
        try:
            store.check()
        except DamagedError:
            store.close()
            raise
    except DamagedError as error:
        return _set_aside(folder, error, busy_s)
    (folder / SUSPECT).unlink(missing_ok=True)
    return store, ""


def _set_aside(folder: Path, error: DamagedError, busy_s: float) -> tuple[WindowStore, str]:
    aside = folder / DAMAGED_FILE
    for ending in ("", "-wal", "-shm"):
        source, target = folder / (FILE_NAME + ending), folder / (DAMAGED_FILE + ending)
        target.unlink(missing_ok=True)
        if source.exists():
            source.rename(target)
    store = WindowStore(folder, busy_s=busy_s)
    saved = _salvage(aside, store)
    (folder / SUSPECT).unlink(missing_ok=True)
    return store, f"{error}; it is now {DAMAGED_FILE}, {saved} of its windows could be saved, and collecting goes on"


def _salvage(aside: Path, store: WindowStore) -> int:
    """Copy the rows that SQLite still reads, from both ends towards the broken page."""
    copied, last = 0, -1
    for order in ("ASC", "DESC"):
        try:
            db = sqlite3.connect(aside)
            try:
                rows = db.execute(f"SELECT id, {COLUMNS} FROM windows ORDER BY id {order}")
                while batch := [row for row in _some(rows) if row[0] > last or order == "ASC"]:
                    whole = [row for row in batch if _whole(row)]
                    with store.writing() as fresh:
                        fresh.executemany(f"INSERT OR IGNORE INTO windows (id, {COLUMNS}) VALUES ({MARKS})", whole)
                        _salvage_numbers(db, fresh, [row[0] for row in whole])
                    copied += len(whole)
                    last = max(last, *(row[0] for row in batch)) if order == "ASC" else last
            finally:
                db.close()
        except sqlite3.DatabaseError:
            continue  # as far as it goes from this end
    return copied


def _salvage_numbers(db: sqlite3.Connection, fresh: sqlite3.Connection, windows: list[int]) -> None:
    """Copy what a regression learns of these windows, where SQLite still reads it."""
    marks = ",".join("?" * len(windows))
    with suppress(sqlite3.DatabaseError):
        found = db.execute(f"SELECT window, number FROM numbers WHERE window IN ({marks})", windows).fetchall()
        kept = [row for row in found if isinstance(row[1], float) and math.isfinite(row[1])]
        fresh.executemany("INSERT OR IGNORE INTO numbers VALUES (?, ?)", kept)


def _some(rows: sqlite3.Cursor) -> list[tuple[int, ...]]:
    """The next rows, one by one: an error later on must not cost those that were read."""
    found: list[tuple[int, ...]] = []
    try:
        while len(found) < BATCH and (row := rows.fetchone()) is not None:
            found.append(row)
    except sqlite3.DatabaseError:
        if not found:
            raise
    return found


def _whole(row: tuple[object, ...]) -> bool:
    kinds = (int, bytes, str, float, float, int, str, str, float)
    typed = all(isinstance(value, kind) for value, kind in zip(row, kinds, strict=True))
    return typed and isinstance(row[1], bytes) and len(row[1]) > 0 and len(row[1]) % (4 * CHANNELS) == 0
