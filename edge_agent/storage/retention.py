"""Which windows go when there are too many: the oldest of the largest class first, so that rare classes stay."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from edge_agent.config.sensors import WindowsSection

DAY_S = 86_400.0


def enforce(db: sqlite3.Connection, limits: WindowsSection, now: float) -> None:
    """Delete, within the caller's transaction, what is too old, too many or too large; by size the unlabelled go first.

    Age counts from when a window was kept; `now` is by the clock of `age_clock`, which is not set.
    """
    # the + keeps SQLite to the index of age: by activity it would read every unlabelled window
    for sign, days in (("<>", limits.max_age_days), ("=", limits.max_unlabelled_age_days)):
        db.execute(f"DELETE FROM windows WHERE at < ? AND +activity {sign} ''", (now - days * DAY_S,))
    counts = {str(name): int(count) for name, count in db.execute(_COUNTS)}
    labelled = {name: count for name, count in counts.items() if name}
    most = _most_by_size(db, limits)
    most_labelled = limits.max_labelled if most is None else min(limits.max_labelled, most)
    gone = to_drop(labelled, most_labelled)
    left = sum(labelled.values()) - sum(gone.values())
    most_unlabelled = limits.max_unlabelled if most is None else min(limits.max_unlabelled, max(0, most - left))
    if (surplus := counts.get("", 0) - most_unlabelled) > 0:
        gone[""] = surplus
    for name, count in gone.items():
        oldest = "SELECT id FROM windows WHERE activity = ? ORDER BY id LIMIT ?"
        db.execute(f"DELETE FROM windows WHERE id IN ({oldest})", (name, count))


_COUNTS = "SELECT activity, COUNT(*) FROM windows GROUP BY activity"


def _most_by_size(db: sqlite3.Connection, limits: WindowsSection) -> int | None:
    """How many windows of the newest one's size fit into `max_mb`; None if there are none."""
    row = db.execute("SELECT LENGTH(x) FROM windows ORDER BY id DESC LIMIT 1").fetchone()
    return None if row is None else int(limits.max_mb * 1e6 // (int(row[0]) + ROW_BYTES))


ROW_BYTES = 1100
"""What a row costs beside its samples, with its place in the indexes; measured 1,088: a page for each window."""


def to_drop(counts: Mapping[str, int], limit: int) -> dict[str, int]:
    """Say how many of each class go so that at most `limit` stay in all.

    It is what dropping one window at a time of the then largest class comes to (of equal ones the first by name), in
    one step: the largest classes are levelled down to a common height.
    """
    surplus = sum(counts.values()) - limit
    if surplus <= 0:
        return {}
    level = _level(counts, limit)
    kept = {name: min(count, level) for name, count in counts.items()}
    # one more window for as many of the levelled classes as there is room for; the first by name were dropped first
    room = limit - sum(kept.values())
    for name in sorted((name for name, count in counts.items() if count > level), reverse=True)[:room]:
        kept[name] += 1
    return {name: counts[name] - kept[name] for name in counts if counts[name] > kept[name]}


def _level(counts: Mapping[str, int], limit: int) -> int:
    """Return the greatest height at which all classes, cut down to it, fit into `limit`."""
    low, high = 0, max(counts.values())
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(count, middle) for count in counts.values()) <= limit:
            low = middle
        else:
            high = middle - 1
    return low
