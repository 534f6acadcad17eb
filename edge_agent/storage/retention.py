"""Retention of windows: beyond the limit, the oldest of the largest class are deleted first, so rare classes stay.

Age is time that the device has lived through, not what its clock was set to. A board without a battery for its clock
starts in 1970, or at its last shutdown, until the network sets it; and a clock that is set forward by years must not
make everything too old to be kept. So age counts by the kernel's monotonic clock, across restarts of the
program. What the machine was switched off for counts as its clock says, but at the most `MAX_OFF_S`, for there a
leap cannot be told from time.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from edge_agent.config.sensors import WindowsSection

DAY_S = 86_400.0
MAX_OFF_S = DAY_S
CLOCK = "clock"
"""Name of the note that holds when windows were kept last, as `ClockReading`."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ClockReading(NamedTuple):
    """A reading of all three clocks, as it is kept."""

    age_s: float
    """What ages are counted by; began as Unix time, and never goes back."""
    wall_s: float
    running_s: float
    boot: str
    """Tells one start of the machine from another: `running_s` continues within it."""


class MachineClock:
    """The clocks of this machine; tests have one of their own."""

    def wall_s(self) -> float:
        """Return Unix time, which may be set."""
        return time.time()

    def running_s(self) -> float:
        """Return seconds since the machine's start, with what it slept where the system counts that."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def boot(self) -> str:
        """Name this start of the machine."""
        return _boot()


@cache
def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return uuid.uuid4().hex  # where the system hides it, each start of the program counts as one of the machine


def read_clock(clock: MachineClock, before: ClockReading | None) -> ClockReading:
    """Read the clocks; `before` is what was read last, by this program or an earlier one."""
    wall_s, running_s, boot = clock.wall_s(), clock.running_s(), clock.boot()
    if before is None:
        return ClockReading(wall_s, wall_s, running_s, boot)
    if boot == before.boot:
        passed_s = max(0.0, running_s - before.running_s)
    else:
        passed_s = min(max(0.0, wall_s - before.wall_s), MAX_OFF_S)
    return ClockReading(before.age_s + passed_s, wall_s, running_s, boot)


def note_age(db: sqlite3.Connection, clock: MachineClock) -> float:
    """Return the present time that ages count by, and note it, within the caller's transaction."""
    row = db.execute("SELECT value FROM notes WHERE name = ?", (CLOCK,)).fetchone()
    present = read_clock(clock, ClockReading(*json.loads(row[0])) if row else None)
    db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (CLOCK, json.dumps(present)))
    return present.age_s


def enforce(db: sqlite3.Connection, limits: WindowsSection, now: float) -> None:
    """Delete, within the caller's transaction, what is too old, too many or too large; by size the unlabelled go first.

    Age counts from when a window was kept; `now` is what `note_age` returned.
    """
    # the + keeps SQLite to the index of age: by activity it would read every unlabelled window
    for sign, days in (("<>", limits.max_age_days), ("=", limits.max_unlabelled_age_days)):
        db.execute(f"DELETE FROM windows WHERE at < ? AND +activity {sign} ''", (now - days * DAY_S,))
    counts = {str(name): int(count) for name, count in db.execute(_COUNTS)}
    labelled = {name: count for name, count in counts.items() if name}
    most = _most_by_size(db, limits)
    max_labelled_kept = limits.max_labelled if most is None else min(limits.max_labelled, most)
    gone = to_drop(labelled, max_labelled_kept)
    left = sum(labelled.values()) - sum(gone.values())
    max_unlabelled_kept = limits.max_unlabelled if most is None else min(limits.max_unlabelled, max(0, most - left))
    if (surplus := counts.get("", 0) - max_unlabelled_kept) > 0:
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
