"""The device's durable state: an SQLite database (WAL) for outbox, rounds, adoptions and single values.

The windows have a file of their own, `edge_agent.storage.window_store`. Each method is one transaction. Each thread and
process opens its own `StateStore`; SQLite orders them. This file is never replaced: what the server has not answered
for good would be gone, so a broken one ends the program with words about it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from edge_agent.errors import DamagedError, StoreError
from edge_agent.storage.database import PATIENT_S, Wait, check, open_database, patiently, transaction
from federation.protocol.messages import AdoptionReport, Offer, ReleaseOrder, ReleaseReport, UpdateManifest, read, write

FILE_NAME = "agent.sqlite"
RELEASE_ORDER, RELEASE_OFFER, RELEASE_REPORT, ADOPTION_REPORT = "order", "offer", "release", "adoption"
REPORTED_GAINS = "reported_gains"
"""Name of what the device has reported of its models' gains in the last rounds, by the round."""
"""Names of single values: the server's last order and offer that were believed, what the device has said about a
release, and about the last candidate of any kind."""
NEWEST_ANNOUNCEMENT = "newest"
"""Name of the epoch and serial of the newest announcement that this device has believed."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS outbox (
    update_id TEXT PRIMARY KEY, path TEXT NOT NULL, manifest BLOB NOT NULL, kept_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS rounds (
    epoch INTEGER NOT NULL, round INTEGER NOT NULL, base TEXT NOT NULL, update_id TEXT NOT NULL, status TEXT NOT NULL,
    reason TEXT NOT NULL, result TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (epoch, round, base)
);
CREATE TABLE IF NOT EXISTS adoptions (
    id INTEGER PRIMARY KEY, round INTEGER NOT NULL, source TEXT NOT NULL, adopted INTEGER NOT NULL,
    reason TEXT NOT NULL, model TEXT NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS pairs (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_TABLES = ("outbox", "rounds", "adoptions", "pairs")


class RememberedRound(NamedTuple):
    """A round as the device remembers it; status: trained (not answered yet), accepted, refused, or left out.

    `epoch` is the server's: after a restore the same round may be trained once more.
    """

    epoch: int
    round: int
    base: str
    update_id: str
    status: str
    reason: str
    result: dict[str, Any]
    at: float


class AdoptionRecord(NamedTuple):
    """A judgement about a candidate: source is personalized or global, model what it is about."""

    round: int
    source: str
    adopted: bool
    reason: str
    model: dict[str, Any]
    at: float


class StateStore:
    """One thread's connection to the device's database in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE_NAME
        with _not_replaced(folder):
            self._db = open_database(self.path, _SCHEMA)
        self._wait: Wait | None = None

    def wait_by(self, wait: Wait) -> None:
        """Ask `wait` every `PATIENT_S` while another program holds the file, where a call would fail after `BUSY_S`."""
        self._wait = wait
        self._db.execute(f"PRAGMA busy_timeout={1000 * PATIENT_S:.0f}")

    def check(self) -> None:
        """Read the file once; raises DamagedError, with what to do, if a page is broken."""
        with _not_replaced(self.folder):
            check(self._db, self.path)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with _not_replaced(self.folder), transaction(self._db, self.path, self._wait) as db:
            yield db

    def _rows(self, query: str, *values: object) -> list[Any]:
        with _not_replaced(self.folder):
            return patiently(lambda: self._db.execute(query, values).fetchall(), self.path, self._wait)

    def reset(self, **pairs: str) -> None:
        """Forget everything and start with these values."""
        with self._writing() as db:
            for table in _TABLES:
                db.execute(f"DELETE FROM {table}")
            self._put(pairs)

    # ---- single values

    def get(self, name: str) -> str:
        """Return a value, or an empty text."""
        rows = self._rows("SELECT value FROM pairs WHERE name = ?", name)
        return str(rows[0][0]) if rows else ""

    def put(self, **pairs: str) -> None:
        """Set values."""
        with self._writing():
            self._put(pairs)

    def _put(self, pairs: Mapping[str, str]) -> None:
        self._db.executemany("INSERT OR REPLACE INTO pairs VALUES (?, ?)", list(pairs.items()))

    def save_message(self, name: str, message: ReleaseOrder | Offer | ReleaseReport | AdoptionReport) -> None:
        """Set a value that is a message of the protocol."""
        self.put(**{name: message.model_dump_json()})

    def release_order(self) -> ReleaseOrder | None:
        """Return the server's last order that was believed."""
        text = self.get(RELEASE_ORDER)
        return read(ReleaseOrder, text.encode()) if text else None

    def release_offer(self) -> Offer | None:
        """Return the last offer that was believed."""
        text = self.get(RELEASE_OFFER)
        return read(Offer, text.encode()) if text else None

    def release_report(self) -> ReleaseReport | None:
        """Return what the device has said last about a release."""
        text = self.get(RELEASE_REPORT)
        return read(ReleaseReport, text.encode()) if text else None

    def adoption_report(self) -> AdoptionReport | None:
        """Return what the device has said last about a model that it might have used."""
        text = self.get(ADOPTION_REPORT)
        return read(AdoptionReport, text.encode()) if text else None

    # ---- rounds and outbox

    def keep_update(self, manifest: UpdateManifest, path: Path, result: Mapping[str, Any], **pairs: str) -> None:
        """Note a trained round and its update, and set values with it, all or nothing; the files are durable before."""
        now = time.time()
        row = (
            self.epoch,
            manifest.round,
            manifest.base_version,
            manifest.update_id,
            "trained",
            "",
            json.dumps(result),
            now,
        )
        with self._writing() as db:
            kept = (manifest.update_id, str(path.relative_to(self.folder)), write(manifest), now)
            db.execute("INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?)", kept)
            db.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._put(pairs)

    def add_message(self, manifest: UpdateManifest, path: Path, **pairs: str) -> None:
        """Put a further message of a round into the outbox, and set values with it; the file is durable before."""
        kept = (manifest.update_id, str(path.relative_to(self.folder)), write(manifest), time.time())
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?)", kept)
            self._put(pairs)

    def replace_outbox(self, manifest: UpdateManifest, path: Path, **pairs: str) -> None:
        """Put one update in place of all that wait, and set values with it; the file is durable before."""
        kept = (manifest.update_id, str(path.relative_to(self.folder)), write(manifest), time.time())
        reason = "the user withdrew this device, or it has no windows left to train on"
        with self._writing() as db:
            db.execute("DELETE FROM outbox")
            db.execute("INSERT INTO outbox VALUES (?, ?, ?, ?)", kept)
            db.execute("UPDATE rounds SET status='left out', reason=? WHERE status='trained'", (reason,))
            self._put(pairs)

    def leave_out(self, round_number: int, base: str, reason: str) -> None:
        """Note that a round was given up."""
        with self._writing() as db:
            row = (self.epoch, round_number, base, "", "left out", reason, "{}", time.time())
            db.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def forget_update(self, update_id: str, status: str, reason: str) -> None:
        """Delete an update that the server has answered for good, and note the answer."""
        with self._writing() as db:
            db.execute("DELETE FROM outbox WHERE update_id = ?", (update_id,))
            db.execute("UPDATE rounds SET status=?, reason=? WHERE update_id=?", (status, reason, update_id))

    def outbox(self) -> dict[str, Path]:
        """Return update ids and files, oldest first."""
        # not by time: the clock may have been set
        rows = self._rows("SELECT update_id, path FROM outbox ORDER BY rowid")
        return {update_id: self.folder / path for update_id, path in rows}

    def manifest(self, update_id: str) -> UpdateManifest:
        """Return the manifest of an update in the outbox.

        Raises:
            StoreError: if it is not there.
        """
        rows = self._rows("SELECT manifest FROM outbox WHERE update_id = ?", update_id)
        if not rows:
            raise StoreError(f"update {update_id} is not in the outbox")
        return read(UpdateManifest, rows[0][0])

    def rounds(self) -> list[RememberedRound]:
        """Return all rounds, oldest first."""
        columns = "epoch, round, base, update_id, status, reason, result, at"
        rows = self._rows(f"SELECT {columns} FROM rounds ORDER BY rowid")
        return [RememberedRound(r[0], r[1], r[2], r[3], r[4], r[5], json.loads(r[6]), r[7]) for r in rows]

    # ---- the server's epoch

    @property
    def epoch(self) -> int:
        """The server's epoch that this device has learnt of; 1 before any."""
        return int(self.get("epoch") or 1)

    def begin_epoch(self, epoch: int, reason: str, **pairs: str) -> None:
        """Note a new epoch, and give up every update that was not answered, for `reason`."""
        with self._writing() as db:
            db.execute("DELETE FROM outbox")
            db.execute("UPDATE rounds SET status='refused', reason=? WHERE status='trained'", (reason,))
            self._put({"epoch": str(epoch), **pairs})

    # ---- adoptions

    def note_adoption(self, row: AdoptionRecord, **pairs: str) -> None:
        """Append a judgement and set values with it."""
        with self._writing() as db:
            values = (row.round, row.source, int(row.adopted), row.reason, json.dumps(row.model), row.at)
            columns = "round, source, adopted, reason, model, at"
            db.execute(f"INSERT INTO adoptions ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)
            self._put(pairs)

    def adoptions(self) -> list[AdoptionRecord]:
        """Return all judgements, oldest first."""
        rows = self._rows("SELECT round, source, adopted, reason, model, at FROM adoptions ORDER BY id")
        return [AdoptionRecord(r[0], r[1], bool(r[2]), r[3], json.loads(r[4]), r[5]) for r in rows]


@contextmanager
def _not_replaced(folder: Path) -> Iterator[None]:
    try:
        yield
    except DamagedError as error:
        raise DamagedError(
            f"{error}. It contains updates that the server hasn't answered, so it isn't replaced automatically: put a "
            f"backup "
            f"in its place, or move it away to give up the updates in {folder / 'outbox'}; windows and models stay"
        ) from error
