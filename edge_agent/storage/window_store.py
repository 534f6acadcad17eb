"""The device's windows in a separate SQLite file (WAL): labelled or not, bounded, deletable.

Apart from `agent.sqlite` because it is large and written all the time: if a page of it breaks, the outbox is not
touched. An activity is kept as a word, so windows outlive a plan. Every method is one transaction; each thread and
process opens its own `WindowStore`.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_agent.config.sensors import WindowsSection
from edge_agent.errors import DamagedError
from edge_agent.storage.database import BUSY_S, check, open_database, sqlite_errors, transaction
from edge_agent.storage.images import ImageExample, ImagePreparation, Preparation
from edge_agent.storage.retention import MachineClock, enforce, note_age
from gaitway.files import private_file
from har_pipeline import ClientWindows, PipelineSettings, Window

FILE_NAME = "windows.sqlite"
SUSPECT = "windows.suspect"
"""A file that whoever finds the database broken leaves for the one who may replace it."""
CHANNELS = 6
IMPORTED_PREFIX = "taken:"
"""What the note of a recorded file that is in begins with; the rest is the second half of its windows' origin."""
SKIPPED = "skipped"
"""Name of the note of recorded files that were left out, and why: JSON."""
PERSONAL = "personal_activities"
"""Name of the note of the person's own activities, each with the label that its windows count as, or '': JSON."""
UNLABELLED = ""
RECORDING = "recording"
"""Origin of windows that were replayed from a data set; they never mix with the device's own."""
SESSION_SPACING_S = 60.0
"""At least, between two sessions of a client whose clocks overlapped; longer than any window."""
WINDOWING_FIELDS = ("rate_hz", "window", "max_gap_s", "cutoff_hz", "half_width_s", "kaiser_beta")
"""Pipeline settings without which two windows cannot train the same network."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS windows (
    id INTEGER PRIMARY KEY, x BLOB NOT NULL, activity TEXT NOT NULL, start_s REAL NOT NULL, end_s REAL NOT NULL,
    session INTEGER NOT NULL, pipeline TEXT NOT NULL, origin TEXT NOT NULL, at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS windows_by_class ON windows (activity, id);
CREATE INDEX IF NOT EXISTS windows_by_age ON windows (at, activity);
CREATE INDEX IF NOT EXISTS windows_by_time ON windows (start_s);
CREATE TABLE IF NOT EXISTS spans (
    id INTEGER PRIMARY KEY AUTOINCREMENT, from_s REAL NOT NULL, to_s REAL NOT NULL, activity TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS changes (
    span INTEGER NOT NULL REFERENCES spans (id) ON DELETE CASCADE,
    window INTEGER NOT NULL REFERENCES windows (id) ON DELETE CASCADE,
    before TEXT NOT NULL, PRIMARY KEY (span, window)
);
CREATE INDEX IF NOT EXISTS changes_by_window ON changes (window);
CREATE TABLE IF NOT EXISTS masks (
    window INTEGER PRIMARY KEY REFERENCES windows (id) ON DELETE CASCADE, y BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS numbers (
    window INTEGER PRIMARY KEY REFERENCES windows (id) ON DELETE CASCADE, number REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS minutes (
    minute INTEGER NOT NULL, label TEXT NOT NULL, windows INTEGER NOT NULL, probability REAL NOT NULL,
    movement REAL NOT NULL, PRIMARY KEY (minute, label)
);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_INSERT = "INSERT INTO windows (x, activity, start_s, end_s, session, pipeline, origin, at) VALUES (?,?,?,?,?,?,?,?)"


_OUTLINE = "activity, start_s, session, (SELECT number FROM numbers WHERE numbers.window = windows.id)"


def shape_key(settings: Preparation) -> str:
    """Name what windows, or images, must agree in to be trained on together."""
    if isinstance(settings, ImagePreparation):
        return settings.key
    record = settings.to_json()
    named = {name: record[name] for name in WINDOWING_FIELDS}
    if settings.anti_alias != PipelineSettings.anti_alias:  # else the key is that of stores from before the option
        named["anti_alias"] = settings.anti_alias
    text = json.dumps(named, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class WindowOutline(NamedTuple):
    """A kept window without its samples; start_s is its begin in seconds since 1970."""

    number: int
    activity: str
    start_s: float
    session: int


class WindowStore:
    """One thread's connection to the windows in `folder`."""

    def __init__(self, folder: Path, clock: MachineClock | None = None, *, busy_s: float = BUSY_S) -> None:
        self.folder, self.path, self._clock = folder, folder / FILE_NAME, clock or MachineClock()
        self._db = open_database(self.path, _SCHEMA, busy_s=busy_s)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def check(self) -> None:
        """Read the file once; raises DamagedError if a page is broken."""
        check(self._db, self.path)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Change rows, all or nothing."""
        with transaction(self._db, self.path) as db:
            yield db

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read rows; a broken page is noted for the agent, which sets the file aside."""
        try:
            with sqlite_errors(self.path):
                yield self._db
        except DamagedError:
            private_file(self.folder / SUSPECT)
            raise

    # ---- windows

    def add(
        self,
        windows: Sequence[Window],
        labels: Sequence[str],
        settings: PipelineSettings,
        limits: WindowsSection,
        *,
        origin: str,
    ) -> None:
        """Append windows whose y is an index into `labels`, or -1; drop what is beyond the limits.

        A window without an activity gets that of the latest span that someone has labelled around it; one with a
        number keeps it.
        """
        shape = shape_key(settings)
        with self.writing() as db:
            now = note_age(db, self._clock)
            for w in windows:
                start_s, end_s = float(w.start_s), float(w.start_s) + settings.window_s
                activity = labels[w.y] if w.y >= 0 else _labelled_activity(db, start_s, end_s)
                x = w.x.astype("<f4").tobytes()
                row = db.execute(_INSERT, (x, activity, start_s, end_s, int(w.session), shape, origin, now)).lastrowid
                if math.isfinite(w.number):
                    db.execute("INSERT INTO numbers VALUES (?, ?)", (row, float(w.number)))
            enforce(db, limits, now)

    def add_images(self, images: Sequence[ImageExample], settings: ImagePreparation, limits: WindowsSection) -> None:
        """Append images, with their masks, in place of what was kept of the same files; drop what is beyond limits.

        Their order stands in place of time.
        """
        shape = shape_key(settings)
        with self.writing() as db:
            now = note_age(db, self._clock)
            number = float(db.execute("SELECT COALESCE(MAX(start_s), -1) + 1 FROM windows").fetchone()[0])
            for i, image in enumerate(images):
                x, at, origin = image.x.tobytes(), number + i, f"image:{image.name}"
                db.execute("DELETE FROM windows WHERE origin = ? AND pipeline = ?", (origin, shape))
                row = db.execute(_INSERT, (x, image.label, at, at, 0, shape, origin, now)).lastrowid
                if image.mask is not None:
                    db.execute("INSERT INTO masks VALUES (?, ?)", (row, image.mask.tobytes()))
            enforce(db, limits, now)

    def read(
        self, client: str, settings: Preparation, labels: Sequence[str], *, unlabelled: bool = False
    ) -> ClientWindows:
        """Read the examples that can be trained on, in the order in which they came: x (n, window, 6).

        Those are the labelled ones whose activity is among `labels` and which were cut under the same settings; with
        `unlabelled` the others too, whose y is the number of labels. Images are (n, channels, height, width) from 0
        to 1.

        Raises:
            DamagedError: if a window's samples are not what was kept.
        """
        rows = self._rows(f"x, {_OUTLINE}", settings, labels, unlabelled)
        if isinstance(settings, ImagePreparation):
            x = self._arrays([row[0] for row in rows], "u1", settings.shape).astype(np.float32) / np.float32(255)
        else:
            x = self._arrays([row[0] for row in rows], "<f4", (settings.window, CHANNELS))
        return self._client_windows(client, x, [row[1:] for row in rows], labels)

    def masks(self, settings: ImagePreparation, labels: Sequence[str]) -> npt.NDArray[np.int64]:
        """Read the classes of the pixels (n, height, width) of the images of `read`, in the same order.

        Raises:
            DamagedError: if an image's mask is not what was kept.
        """
        rows = self._rows("(SELECT y FROM masks WHERE masks.window = windows.id)", settings, labels, False)
        return self._arrays([row[0] for row in rows], "u1", settings.shape[1:]).astype(np.int64)

    def _arrays(self, kept: Sequence[object], kind: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        found = np.empty((len(kept), *shape), np.dtype(kind))
        for i, data in enumerate(kept):
            size = len(data) if isinstance(data, bytes) else 0
            if not isinstance(data, bytes) or size != found[i].nbytes:
                private_file(self.folder / SUSPECT)
                raise DamagedError(f"an example of {self.path} has {size} bytes, expected {found[i].nbytes}")
            found[i] = np.frombuffer(data, kind).reshape(shape)
        return found

    def outline(
        self, client: str, settings: Preparation, labels: Sequence[str], *, unlabelled: bool = False
    ) -> ClientWindows:
        """Read all of `read` but the samples: x is (n, 0, 6); enough to split and to count."""
        rows = self._rows(_OUTLINE, settings, labels, unlabelled)
        return self._client_windows(client, np.empty((len(rows), 0, CHANNELS), np.float32), rows, labels)

    def _client_windows(
        self, client: str, x: np.ndarray, rows: Sequence[tuple[object, ...]], labels: Sequence[str]
    ) -> ClientWindows:
        code = {name: i for i, name in enumerate(labels)}
        code = {name: code[label] for name, label in self._counted_as(labels).items()} | code
        y = np.array([code.get(str(row[0]), len(labels)) for row in rows], np.int64)
        kinds = ((1, np.float64), (2, np.int64), (3, np.float64))
        start_s, session, number = (np.array([row[i] for row in rows], kind) for i, kind in kinds)  # None becomes NaN
        if self.get("reads") != RECORDING:
            start_s = one_after_another(start_s, session)
        return ClientWindows(client, x, y, start_s, session, number)

    def _rows(
        self, columns: str, settings: Preparation, labels: Sequence[str], unlabelled: bool
    ) -> list[tuple[object, ...]]:
        same = "=" if self.get("reads") == RECORDING else "<>"
        wanted = (*labels, *self._counted_as(labels))
        query = (
            f"SELECT {columns} FROM windows WHERE pipeline = ? AND origin {same} '{RECORDING}' "
            f"AND (? OR activity IN ({','.join('?' * len(wanted))})) ORDER BY id"
        )
        with self.reading() as db:
            return db.execute(query, (shape_key(settings), unlabelled, *wanted)).fetchall()

    def _counted_as(self, labels: Sequence[str]) -> dict[str, str]:
        """Return the person's own activities that count as one of these labels, and as which."""
        noted: dict[str, str] = json.loads(self.get(PERSONAL) or "{}")
        return {name: label for name, label in noted.items() if label in labels and name not in labels}

    def newest(self, settings: PipelineSettings, activities: Sequence[str], count: int) -> list[WindowOutline]:
        """List the newest `count` windows of these activities, the oldest of them first."""
        same = "=" if self.get("reads") == RECORDING else "<>"
        query = (
            f"SELECT id, activity, start_s, session FROM windows WHERE pipeline = ? AND origin {same} '{RECORDING}' "
            f"AND activity IN ({','.join('?' * len(activities))}) ORDER BY id DESC LIMIT ?"
        )
        with self.reading() as db:
            rows = db.execute(query, (shape_key(settings), *activities, count)).fetchall()
        return [WindowOutline(*row) for row in reversed(rows)]

    def samples(self, numbers: Sequence[int], settings: PipelineSettings) -> npt.NDArray[np.float32]:
        """Read the samples (n, window, 6) of windows by their numbers; one that is gone by now is left out.

        Raises:
            DamagedError: if a window's samples are not what was kept.
        """
        with self.reading() as db:
            rows = [db.execute("SELECT x FROM windows WHERE id = ?", (number,)).fetchone() for number in numbers]
        found: npt.NDArray[np.float32] = self._arrays(
            [row[0] for row in rows if row], "<f4", (settings.window, CHANNELS)
        )
        return found

    def counts(self) -> dict[str, int]:
        """Count the windows of each activity, of those that can be read now; '' are the unlabelled."""
        same = "=" if self.get("reads") == RECORDING else "<>"
        with self.reading() as db:
            found = db.execute(
                f"SELECT activity, COUNT(*) FROM windows WHERE origin {same} '{RECORDING}' GROUP BY activity"
            )
            return {str(activity): int(count) for activity, count in found}

    def next_session(self) -> int:
        """Return a session number above all that are kept."""
        with self.reading() as db:
            return int(db.execute("SELECT COALESCE(MAX(session), -1) + 1 FROM windows").fetchone()[0])

    def drop_origin(self, origin: str) -> None:
        """Forget the windows of one origin."""
        with self.writing() as db:
            db.execute("DELETE FROM windows WHERE origin = ?", (origin,))

    # ---- notes

    def get(self, name: str) -> str:
        """Return a note, or an empty text."""
        with self.reading() as db:
            row = db.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else ""

    def put(self, **notes: str) -> None:
        """Set notes."""
        with self.writing() as db:
            db.executemany("INSERT OR REPLACE INTO notes VALUES (?, ?)", list(notes.items()))

    def version(self) -> int:
        """Return a number that changes when another connection has changed anything."""
        with self.reading() as db:
            return int(db.execute("PRAGMA data_version").fetchone()[0])


def one_after_another(start_s: np.ndarray, session: np.ndarray) -> np.ndarray:
    """Move sessions whose clocks overlap apart: starts (n,) in seconds, session (n,); others stay where they are.

    They are recordings of their own, perhaps all from 0 s on. A split in time would take them for one, and drop
    training windows because a test window of another recording began in the same second.
    """
    moved, end_s = start_s.copy(), -np.inf
    spans = [
        (start_s[session == number].min(), start_s[session == number].max(), number) for number in np.unique(session)
    ]
    for first_s, last_s, number in sorted(spans):
        shift_s = end_s + SESSION_SPACING_S - first_s if first_s <= end_s else 0.0
        moved[session == number] += shift_s
        end_s = last_s + shift_s
    return moved


def _labelled_activity(db: sqlite3.Connection, start_s: float, end_s: float) -> str:
    """Return the activity of the latest labelled span that covers at least half of a window, or ''."""
    row = db.execute(
        "SELECT activity FROM spans WHERE MIN(to_s, ?) - MAX(from_s, ?) >= ? ORDER BY id DESC LIMIT 1",
        (end_s, start_s, (end_s - start_s) / 2),
    ).fetchone()
    return str(row[0]) if row else UNLABELLED
