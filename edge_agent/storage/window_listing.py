"""Lists stored windows by class and day, exports them for other programs, and deletes some."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edge_agent.errors import StoreError
from edge_agent.storage.data_folder import move_file
from edge_agent.storage.repair import DAMAGED_FILE
from edge_agent.storage.timeline import forget_minutes, forget_span
from edge_agent.storage.window_store import CHANNELS, UNLABELLED, WindowStore


class Selection(NamedTuple):
    """Which windows are meant; None: any. activity '' means those without one."""

    activity: str | None = None
    from_s: float | None = None
    to_s: float | None = None

    def condition(self) -> tuple[str, list[object]]:
        """Return an SQL condition and its values; a window belongs to a span if it begins in it."""
        parts, values = ["1"], list[object]()
        for column, value in (("activity =", self.activity), ("start_s >=", self.from_s), ("start_s <", self.to_s)):
            if value is not None:
                parts.append(f"{column} ?")
                values.append(value)
        return " AND ".join(parts), values


class ClassRow(NamedTuple):
    """One activity ('': none) from one source; bytes of samples, first and last start in seconds since 1970."""

    activity: str
    origin: str
    windows: int
    bytes: int
    first_s: float
    last_s: float


def by_class(store: WindowStore, selection: Selection) -> list[ClassRow]:
    """Count by activity and source, labelled ones first, by name."""
    condition, values = selection.condition()
    with store.reading() as db:
        rows = db.execute(
            "SELECT activity, SUBSTR(origin || ':', 1, INSTR(origin || ':', ':') - 1) AS kind, COUNT(*), "
            f"SUM(LENGTH(x)), MIN(start_s), MAX(start_s) FROM windows WHERE {condition} "
            "GROUP BY activity, kind ORDER BY activity = '', activity, kind",
            values,
        ).fetchall()
    return [ClassRow(*row) for row in rows]


def by_day(store: WindowStore, selection: Selection) -> dict[str, dict[str, int]]:
    """Count by day, on this device's calendar, and activity."""
    condition, values = selection.condition()
    days: dict[str, dict[str, int]] = {}
    with store.reading() as db:
        for start_s, activity in db.execute(
            f"SELECT start_s, activity FROM windows WHERE {condition} ORDER BY start_s", values
        ):
            day = days.setdefault(datetime.fromtimestamp(start_s).date().isoformat(), {})
            day[activity] = day.get(activity, 0) + 1
    return days


def export(store: WindowStore, selection: Selection, path: Path) -> int:
    """Write x (n, window, 6), activity (n,), start_s (n,), session (n,), origin (n,) as .npz; returns n.

    Raises:
        StoreError: if there are none, or they are of more than one length.
    """
    condition, values = selection.condition()
    with store.reading() as db:
        sizes = [row[0] for row in db.execute(f"SELECT DISTINCT LENGTH(x) FROM windows WHERE {condition}", values)]
        if len(sizes) != 1:
            what = "have several lengths; select some with --from and --to" if sizes else "are no such windows"
            raise StoreError(f"nothing was written: there {what}")
        rows = db.execute(
            f"SELECT x, activity, start_s, session, origin FROM windows WHERE {condition} ORDER BY id", values
        ).fetchall()
    x = np.stack([np.frombuffer(row[0], dtype="<f4") for row in rows]).reshape(len(rows), -1, CHANNELS)
    columns = _columns(rows, ("activity", "start_s", "session", "origin"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
        np.savez_compressed(file, x=x, allow_pickle=False, **columns)
    move_file(Path(file.name), path)
    return len(rows)


def _columns(rows: Sequence[tuple[object, ...]], names: Sequence[str]) -> dict[str, np.ndarray]:
    return {name: np.array([row[at] for row in rows]) for at, name in enumerate(names, 1)}


def delete(store: WindowStore, selection: Selection) -> int:
    """Delete windows for good: their bytes are overwritten in the file, which shrinks; returns how many.

    What was recognized in their minutes goes too. A broken database that was set aside may hold them, and goes with
    them.
    """
    condition, values = selection.condition()
    with store.reading() as db:
        db.execute("PRAGMA secure_delete=ON").fetchall()
    with store.writing() as db:
        forget_minutes(db, condition, values)
        if selection.activity is None:  # also what was recognized in windows that are not kept
            forget_span(db, selection.from_s, selection.to_s)
        count = db.execute(f"DELETE FROM windows WHERE {condition}", values).rowcount
    with store.reading() as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for ending in ("", "-wal", "-shm"):
        (store.folder / (DAMAGED_FILE + ending)).unlink(missing_ok=True)
    return count


def name_of(activity: str) -> str:
    """Write an activity for a person."""
    return "(none)" if activity == UNLABELLED else activity
