"""The device's memory: one SQLite database (WAL) for windows, outbox, rounds, adoptions and single values.

Every method is one transaction. Each thread and process opens its own `Store`; SQLite orders them.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge_agent.errors import StoreError
from federation.protocol.messages import UpdateManifest, read, write
from har_pipeline import ClientWindows, Window

FILE_NAME = "agent.sqlite"
CHANNELS = 6

_SCHEMA = """
CREATE TABLE IF NOT EXISTS windows (
    id INTEGER PRIMARY KEY, x BLOB NOT NULL, y INTEGER NOT NULL, start_s REAL NOT NULL, session INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS outbox (
    update_id TEXT PRIMARY KEY, path TEXT NOT NULL, manifest BLOB NOT NULL, kept_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS rounds (
    round INTEGER NOT NULL, base TEXT NOT NULL, update_id TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL,
    result TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (round, base)
);
CREATE TABLE IF NOT EXISTS adoptions (
    id INTEGER PRIMARY KEY, round INTEGER NOT NULL, source TEXT NOT NULL, adopted INTEGER NOT NULL,
    reason TEXT NOT NULL, model TEXT NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS pairs (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_TABLES = ("windows", "outbox", "rounds", "adoptions", "pairs")


class RoundRow(NamedTuple):
    """A round as the device remembers it; status: trained (not answered yet), accepted, refused, or left out."""

    round: int
    base: str
    update_id: str
    status: str
    reason: str
    result: dict[str, Any]
    at: float


class AdoptionRow(NamedTuple):
    """A judgement about a candidate: source is personalized or global, model what it is about."""

    round: int
    source: str
    adopted: bool
    reason: str
    model: dict[str, Any]
    at: float


class Store:
    """One thread's connection to the device's database in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        try:
            self._db = sqlite3.connect(folder / FILE_NAME, timeout=30.0)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            with self._db:
                self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{folder / FILE_NAME} cannot be used: {error}; move it away to start anew") from error

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def reset(self, **pairs: str) -> None:
        """Forget everything and start with these values."""
        with self._db:
            for table in _TABLES:
                self._db.execute(f"DELETE FROM {table}")
            self._put(pairs)

    # ---- windows

    def add_windows(self, windows: Sequence[Window], limit: int) -> None:
        """Append labelled windows, and drop the oldest beyond `limit`."""
        rows = [(w.x.astype("<f4").tobytes(), int(w.y), float(w.start_s), int(w.session)) for w in windows]
        with self._db:
            self._db.executemany("INSERT INTO windows (x, y, start_s, session) VALUES (?, ?, ?, ?)", rows)
            oldest = "SELECT id FROM windows ORDER BY id DESC LIMIT -1 OFFSET ?"
            self._db.execute(f"DELETE FROM windows WHERE id IN ({oldest})", (limit,))

    def windows(self, client: str, length: int) -> ClientWindows:
        """Read all windows in the order in which they came: x (n, length, 6).

        Raises:
            StoreError: if a window was kept with another length.
        """
        rows = self._db.execute("SELECT x, y, start_s, session FROM windows ORDER BY id").fetchall()
        x = np.empty((len(rows), length, CHANNELS), np.float32)
        for i, row in enumerate(rows):
            values = np.frombuffer(row[0], "<f4")
            if values.size != length * CHANNELS:
                raise StoreError(f"window {i} has {values.size} values, expected {length} samples of {CHANNELS}")
            x[i] = values.reshape(length, CHANNELS)
        columns = [np.array([row[i] for row in rows], kind) for i, kind in ((1, np.int64), (2, float), (3, np.int64))]
        return ClientWindows(client, x, *columns)

    def window_count(self) -> int:
        """Count the windows."""
        return int(self._db.execute("SELECT COUNT(*) FROM windows").fetchone()[0])

    def clear_windows(self) -> None:
        """Forget the windows."""
        with self._db:
            self._db.execute("DELETE FROM windows")

    # ---- single values

    def get(self, name: str) -> str:
        """Return a value, or an empty text."""
        row = self._db.execute("SELECT value FROM pairs WHERE name = ?", (name,)).fetchone()
        return row[0] if row else ""

    def put(self, **pairs: str) -> None:
        """Set values."""
        with self._db:
            self._put(pairs)

    def _put(self, pairs: Mapping[str, str]) -> None:
        self._db.executemany("INSERT OR REPLACE INTO pairs VALUES (?, ?)", list(pairs.items()))

    # ---- rounds and outbox

    def keep_update(self, manifest: UpdateManifest, path: Path, result: Mapping[str, Any], client_state: str) -> None:
        """Note a trained round, its update and the client's new state, all or nothing; the files are durable before."""
        now = time.time()
        row = (manifest.round, manifest.base_version, manifest.update_id, "trained", "", json.dumps(result), now)
        with self._db:
            kept = (manifest.update_id, str(path.relative_to(self.folder)), write(manifest), now)
            self._db.execute("INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?)", kept)
            self._db.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            self._put({"client_state": client_state})

    def leave_out(self, round_number: int, base: str, reason: str) -> None:
        """Note that a round was given up."""
        with self._db:
            row = (round_number, base, "", "left out", reason, "{}", time.time())
            self._db.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def forget_update(self, update_id: str, status: str, reason: str) -> None:
        """Delete an update that the server has answered for good, and note the answer."""
        with self._db:
            self._db.execute("DELETE FROM outbox WHERE update_id = ?", (update_id,))
            self._db.execute("UPDATE rounds SET status=?, reason=? WHERE update_id=?", (status, reason, update_id))

    def outbox(self) -> dict[str, Path]:
        """Return update ids and files, oldest first."""
        rows = self._db.execute("SELECT update_id, path FROM outbox ORDER BY kept_at, update_id")
        return {update_id: self.folder / path for update_id, path in rows}

    def manifest(self, update_id: str) -> UpdateManifest:
        """Return the manifest of an update in the outbox.

        Raises:
            StoreError: if it is not there.
        """
        row = self._db.execute("SELECT manifest FROM outbox WHERE update_id = ?", (update_id,)).fetchone()
        if row is None:
            raise StoreError(f"update {update_id} is not in the outbox")
        return read(UpdateManifest, row[0])

    def rounds(self) -> list[RoundRow]:
        """Return all rounds, oldest first."""
        rows = self._db.execute("SELECT round, base, update_id, status, reason, result, at FROM rounds ORDER BY at")
        return [RoundRow(r[0], r[1], r[2], r[3], r[4], json.loads(r[5]), r[6]) for r in rows]

    # ---- adoptions

    def note_adoption(self, row: AdoptionRow, **pairs: str) -> None:
        """Append a judgement and set values with it."""
        with self._db:
            values = (row.round, row.source, int(row.adopted), row.reason, json.dumps(row.model), row.at)
            columns = "round, source, adopted, reason, model, at"
            self._db.execute(f"INSERT INTO adoptions ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)
            self._put(pairs)

    def adoptions(self) -> list[AdoptionRow]:
        """Return all judgements, oldest first."""
        rows = self._db.execute("SELECT round, source, adopted, reason, model, at FROM adoptions ORDER BY id")
        return [AdoptionRow(r[0], r[1], bool(r[2]), r[3], json.loads(r[4]), r[5]) for r in rows]
