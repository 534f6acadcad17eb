"""Giving windows an activity afterwards, taking that back, and finding what has none yet."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from edge_agent.errors import LabelError
from edge_agent.storage.window_store import WindowStore
from gaitway.errors import did_you_mean

SHARE = 0.5
"""Of a window that must lie in a span to get its activity."""
JOIN_S = 5.0
"""Windows that are no further apart than this form one stretch."""


class Labelled(NamedTuple):
    """What a label command did: the span's number, and how many windows it changed."""

    span: int
    activity: str
    windows: int


class Stretch(NamedTuple):
    """Consecutive windows, seconds since 1970."""

    from_s: float
    to_s: float
    windows: int


def vocabulary(store: WindowStore) -> tuple[str, ...]:
    """Return the labels of the plan that the agent last collected for; raises LabelError before there was one."""
    text = store.get("labels")
    if not text:
        raise LabelError("no plan is known yet, so there are no labels; start the agent once with its server in reach")
    return tuple(json.loads(text))


def known_activity(name: str, labels: Sequence[str]) -> str:
    """Return the label that is meant, whatever its case; raises LabelError with the nearest one."""
    by_lower = {label.lower(): label for label in labels}
    if (found := by_lower.get(name.strip().lower())) is None:
        raise LabelError(f"{name!r} is no activity of this federation; {did_you_mean(name, labels)}")
    return found


def label_span(store: WindowStore, from_s: float, to_s: float, activity: str) -> Labelled:
    """Give an activity to every window of which at least half lies in the span, also to those still to come.

    Raises:
        LabelError: if the span is empty.
    """
    if not to_s > from_s:
        raise LabelError("the span ends before it begins; swap --from and --to")
    with store.writing() as db:
        span = db.execute(
            "INSERT INTO spans (from_s, to_s, activity, at) VALUES (?, ?, ?, ?)", (from_s, to_s, activity, time.time())
        ).lastrowid
        inside = (
            "start_s < :to AND end_s > :from AND activity <> :activity "
            "AND MIN(end_s, :to) - MAX(start_s, :from) >= :share * (end_s - start_s)"
        )
        values = {"span": span, "from": from_s, "to": to_s, "activity": activity, "share": SHARE}
        db.execute(f"INSERT INTO changes SELECT :span, id, activity FROM windows WHERE {inside}", values)
        changed = db.execute(f"UPDATE windows SET activity = :activity WHERE {inside}", values).rowcount
    return Labelled(int(span or 0), activity, changed)


def undo(store: WindowStore) -> Labelled:
    """Take the last label command back; raises LabelError if there is none left."""
    with store.writing() as db:
        row = db.execute("SELECT id, activity FROM spans ORDER BY id DESC LIMIT 1").fetchone()
        if row is None:
            raise LabelError("there is no label command to take back")
        span, activity = int(row[0]), str(row[1])
        restored = db.execute(
            "UPDATE windows SET activity = (SELECT before FROM changes WHERE span = ?1 AND window = windows.id) "
            "WHERE id IN (SELECT window FROM changes WHERE span = ?1)",
            (span,),
        ).rowcount
        db.execute("DELETE FROM spans WHERE id = ?", (span,))
    return Labelled(span, activity, restored)


def unlabelled(store: WindowStore) -> list[Stretch]:
    """List the stretches of windows without an activity, oldest first."""
    found: list[Stretch] = []
    with store.reading() as db:
        for start_s, end_s in db.execute("SELECT start_s, end_s FROM windows WHERE activity = '' ORDER BY start_s"):
            if found and start_s - found[-1].to_s <= JOIN_S:
                last = found[-1]
                found[-1] = Stretch(last.from_s, max(last.to_s, end_s), last.windows + 1)
            else:
                found.append(Stretch(start_s, end_s, 1))
    return found
