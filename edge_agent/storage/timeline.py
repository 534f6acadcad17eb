"""The device's timeline: movement, recognized activities and labels, minute by minute.

The classifier adds up what it sees in the table `minutes` of windows.sqlite; labels are those of the windows that are
kept. What is labelled here is labelled as by `label`, so it counts in the next round or the next sums.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import NamedTuple

from edge_agent.storage.window_store import UNLABELLED, WindowStore
from har_pipeline.signals.wear import NOT_WORN

MINUTE_S = 60.0
MAX_ROWS = 100_000
"""About five weeks of days with two activities a minute; what was added first goes first, whatever the clock says."""
UNCERTAIN = 0.75
"""Below it a stretch is asked about: so much of what was recognized in it speaks for one activity."""
MAX_ASKED_MINUTES = 15
"""Of one question, so that a label is not given to hours at once."""


class MinuteSum(NamedTuple):
    """What was recognized in one minute as one label ('': nothing), summed over its windows.

    `movement` is the standard deviation of the acceleration's magnitude in m/s², `probability` that of the label.
    """

    minute: int
    label: str
    windows: int
    probability: float
    movement: float


class Stretch(NamedTuple):
    """Minutes that follow each other and look alike; seconds since 1970.

    `certainty` is the sum of the label's probabilities over all windows of the stretch, None where nothing was
    recognized or nobody wore the device; `movement` is None where nothing was classified.
    """

    from_s: float
    to_s: float
    recognized: str
    certainty: float | None
    movement: float | None
    label: str
    kept: int
    unlabelled: int


@dataclass
class Minute:
    """One minute, of both tables."""

    recognized: dict[str, float] = field(default_factory=dict)
    """By label the sum of its probabilities."""
    seen: int = 0
    movement: float = 0.0
    kept: dict[str, int] = field(default_factory=dict)
    """Windows by activity; '' without one."""

    @property
    def label(self) -> str:
        """The activity of most labelled windows, or ''."""
        labelled = {name: count for name, count in self.kept.items() if name != UNLABELLED}
        return max(labelled, key=labelled.__getitem__) if labelled else UNLABELLED

    @property
    def likeliest(self) -> str:
        """The label that most speaks for, or ''."""
        named = {name: p for name, p in self.recognized.items() if name}
        return max(named, key=named.__getitem__) if named else ""


def add_minutes(store: WindowStore, sums: Iterable[MinuteSum]) -> None:
    """Add what was recognized to its minutes."""
    with store.writing() as db:
        db.executemany(
            "INSERT INTO minutes VALUES (?, ?, ?, ?, ?) ON CONFLICT (minute, label) DO UPDATE SET "
            "windows = windows + excluded.windows, probability = probability + excluded.probability, "
            "movement = movement + excluded.movement",
            list(sums),
        )
        db.execute("DELETE FROM minutes WHERE rowid <= (SELECT MAX(rowid) FROM minutes) - ?", (MAX_ROWS,))


def forget_minutes(db: sqlite3.Connection, condition: str, values: Sequence[object]) -> None:
    """Forget what was recognized in the minutes of some windows, within the caller's transaction."""
    db.execute(
        "DELETE FROM minutes WHERE minute IN "
        f"(SELECT DISTINCT CAST(start_s / {MINUTE_S} AS INTEGER) FROM windows WHERE {condition})",
        values,
    )


def forget_span(db: sqlite3.Connection, from_s: float | None, to_s: float | None) -> None:
    """Forget what was recognized in minutes that reach into a span; None: without end."""
    low, high = (-1 if from_s is None else from_s // MINUTE_S), (1e15 if to_s is None else to_s / MINUTE_S)
    db.execute("DELETE FROM minutes WHERE minute >= ? AND minute < ?", (low, high))


def days(store: WindowStore) -> list[date]:
    """List the days of this device's calendar of which something is known, the newest first."""
    with store.reading() as db:
        rows = db.execute(
            "SELECT DISTINCT CAST(start_s / 900 AS INTEGER) FROM windows UNION SELECT DISTINCT minute / 15 FROM minutes"
        ).fetchall()  # no zone's days begin within a quarter of an hour
    return sorted({datetime.fromtimestamp(900 * row[0]).date() for row in rows}, reverse=True)


def bounds(day: date) -> tuple[float, float]:
    """Return when a day of this device's calendar begins and ends, in seconds since 1970."""
    begin = datetime.combine(day, time())
    return begin.timestamp(), (begin + timedelta(days=1)).timestamp()


def read_minutes(store: WindowStore, from_s: float, to_s: float) -> dict[int, Minute]:
    """Read the minutes of a span of which something is known."""
    found: dict[int, Minute] = {}
    with store.reading() as db:
        seen = db.execute(
            "SELECT minute, label, windows, probability, movement FROM minutes WHERE minute >= ? AND minute < ?",
            (from_s / MINUTE_S, to_s / MINUTE_S),
        ).fetchall()
        kept = db.execute(
            f"SELECT CAST(start_s / {MINUTE_S} AS INTEGER), activity, COUNT(*) FROM windows "
            "WHERE start_s >= ? AND start_s < ? GROUP BY 1, 2",
            (from_s, to_s),
        ).fetchall()
    for row in map(MinuteSum._make, seen):
        minute = found.setdefault(row.minute, Minute())
        minute.recognized[row.label] = row.probability
        minute.seen += row.windows
        minute.movement += row.movement
    for number, activity, count in kept:
        found.setdefault(number, Minute()).kept[activity] = count
    return dict(sorted(found.items()))


def stretches(minutes: dict[int, Minute], longest: int | None = None) -> list[Stretch]:
    """Join minutes that follow each other with the same recognized and the same given label, at most `longest`."""
    runs: list[list[int]] = []
    for number, minute in sorted(minutes.items()):
        last = runs[-1] if runs else []
        before = minutes[last[-1]] if last else None
        same = before is not None and (before.likeliest, before.label) == (minute.likeliest, minute.label)
        if same and last[-1] == number - 1 and (longest is None or len(last) < longest):
            last.append(number)
        else:
            runs.append([number])
    return [_stretch([minutes[number] for number in run], run[0], run[-1] + 1) for run in runs]


def uncertain(minutes: dict[int, Minute]) -> list[Stretch]:
    """List the stretches whose label would help most: without a label, the least certain first."""
    unlabelled = [
        stretch
        for stretch in stretches(minutes, MAX_ASKED_MINUTES)
        if stretch.unlabelled
        and not stretch.label
        and (stretch.certainty or 0.0) < UNCERTAIN
        and stretch.recognized != NOT_WORN
    ]
    # what was never classified says nothing about where the model is weak
    return sorted(
        unlabelled, key=lambda stretch: (stretch.certainty is None, stretch.certainty or 0.0, -stretch.unlabelled)
    )


def _stretch(run: Sequence[Minute], first: int, end: int) -> Stretch:
    label, seen = run[0].likeliest, sum(minute.seen for minute in run)
    is_guess = seen and label not in ("", NOT_WORN)
    kept = sum(sum(minute.kept.values()) for minute in run)
    return Stretch(
        first * MINUTE_S,
        end * MINUTE_S,
        label,
        sum(minute.recognized.get(label, 0.0) for minute in run) / seen if is_guess else None,
        sum(minute.movement for minute in run) / seen if seen else None,
        run[0].label,
        kept,
        sum(minute.kept.get(UNLABELLED, 0) for minute in run),
    )
