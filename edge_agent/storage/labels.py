"""Labels windows by time, file or session, and manages the user's own activities.

A person's own activities are classes behind the federation's, which the device learns for itself. Their windows are in
nothing that is sent, unless the person says as which of the federation's activities they may count; the name is never
sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from edge_agent.errors import LabelError
from edge_agent.storage.window_store import IMPORTED_PREFIX, PERSONAL, RECORDING, WindowStore
from gaitway.errors import did_you_mean, unknown_class
from gaitway.plain_text import checked, cleaned

SHARE = 0.5
"""Of a window that must lie in a span to get its activity."""
OWN = f"origin <> '{RECORDING}'"
"""Condition on windows that are the device's own: those of a replayed data set are never labelled by hand."""
JOIN_S = 5.0
"""Windows that are no further apart than this form one stretch."""


class Labelled(NamedTuple):
    """What a label command did: the span's number, and how many windows it changed."""

    span: int
    activity: str
    windows: int


class RecordingSession(NamedTuple):
    """An unbroken stretch of one recording, and how many of its windows have no activity.

    file is the recorded file that it came from, or the source's name; from_s and to_s are on the recording's own clock.
    """

    number: int
    file: str
    from_s: float
    to_s: float
    windows: int
    unlabelled: int


class Stretch(NamedTuple):
    """Consecutive windows, seconds since 1970."""

    from_s: float
    to_s: float
    windows: int


def vocabulary(store: WindowStore) -> tuple[str, ...]:
    """Return what windows can be labelled with: the plan's labels, and the person's own activities behind them.

    Raises:
        LabelError: before there was a plan, or where it has no labels.
    """
    return (*plan_labels(store), *json.loads(store.get(PERSONAL) or "{}"))


def plan_labels(store: WindowStore) -> tuple[str, ...]:
    """Return the labels of the plan that the agent last collected for; raises LabelError before there was one."""
    text = store.get("labels")
    if not text:
        raise LabelError(
            "no plan is known yet, so there are no labels; start the agent once while its server is reachable"
        )
    labels = tuple(json.loads(text))
    if not labels:
        raise LabelError("this federation learns a number, which comes with the samples: windows need no label")
    return labels


def known_activity(name: str, labels: Sequence[str]) -> str:
    """Return the label that is meant, whatever its case; raises LabelError with the nearest one."""
    by_lower = {label.lower(): label for label in labels}
    if (found := by_lower.get(cleaned(name.strip().lower()))) is None:
        raise LabelError(f"{name!r} isn't an activity of this federation; {unknown_class(name, labels)}")
    return found


def label_span(store: WindowStore, from_s: float, to_s: float, activity: str) -> Labelled:
    """Give an activity to every window of which at least half lies in the span, also to those still to come.

    Raises:
        LabelError: if the span is empty.
    """
    if not to_s > from_s:
        raise LabelError("the span ends before it begins; swap --from and --to")
    inside = "start_s < :to AND end_s > :from AND MIN(end_s, :to) - MAX(start_s, :from) >= :share * (end_s - start_s)"
    return _label(store, activity, inside, {"from": from_s, "to": to_s, "share": SHARE})


def label_file(store: WindowStore, file: str, activity: str) -> Labelled:
    """Give an activity to every window of a recorded file, by its name below [sensors] path or the end of it.

    Raises:
        LabelError: if no file of that name is in, or more than one.
    """
    names = {session.number: session.file for session in sessions(store)}
    found = {name for name in names.values() if name == file or name.endswith(f"/{file}")}
    if len(found) != 1:
        several = f"{len(found)} files match: {', '.join(sorted(found)[:5])}; give more of the path"
        nearest = did_you_mean(file, sorted(set(names.values()))) if names else "none is in yet"
        raise LabelError(f"{file!r} doesn't name exactly one file; {several if found else nearest}")
    return label_sessions(store, [number for number, name in names.items() if name in found], activity)


def label_sessions(store: WindowStore, numbers: Sequence[int], activity: str) -> Labelled:
    """Give an activity to every window of some sessions; raises LabelError for one that is not there."""
    known = {session.number for session in sessions(store)}
    if missing := sorted({*numbers} - known):
        raise LabelError(f"there is no session {missing[0]}; `label --sessions` lists the sessions")
    among = f"session IN ({','.join(str(int(number)) for number in numbers)})"
    return _label(store, activity, f"{OWN} AND {among}", {"from": 0.0, "to": 0.0})  # no time: it holds for none to come


def _label(store: WindowStore, activity: str, chosen: str, values: dict[str, float]) -> Labelled:
    with store.writing() as db:
        span = db.execute(
            "INSERT INTO spans (from_s, to_s, activity, at) VALUES (?, ?, ?, ?)",
            (values["from"], values["to"], activity, time.time()),
        ).lastrowid
        where, named = f"activity <> :activity AND {chosen}", {"span": span, "activity": activity, **values}
        db.execute(f"INSERT INTO changes SELECT :span, id, activity FROM windows WHERE {where}", named)
        changed = db.execute(f"UPDATE windows SET activity = :activity WHERE {where}", named).rowcount
    return Labelled(int(span or 0), activity, changed)


def sessions(store: WindowStore) -> list[RecordingSession]:
    """List the sessions of the device's own windows, in the order in which they came."""
    with store.reading() as db:
        rows = db.execute(
            "SELECT session, origin, MIN(start_s), MAX(end_s), COUNT(*), SUM(activity = '') FROM windows "
            f"WHERE {OWN} GROUP BY session, origin ORDER BY MIN(id)"
        ).fetchall()
    return [RecordingSession(row[0], _file_of(store, row[1]), *row[2:]) for row in rows]


def _file_of(store: WindowStore, origin: str) -> str:
    kind, _, key = origin.partition(":")
    taken = store.get(f"{IMPORTED_PREFIX}{key}") if key else ""
    return str(json.loads(taken)["name"]) if taken else kind


def undo(store: WindowStore) -> Labelled:
    """Take the last label command back; raises LabelError if there is none left."""
    with store.writing() as db:
        row = db.execute("SELECT id, activity FROM spans ORDER BY id DESC LIMIT 1").fetchone()
        if row is None:
            raise LabelError("there is no label command to undo")
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


MAX_ACTIVITIES = 8
MAX_NAME_LENGTH = 40


def personal_activities(store: WindowStore) -> dict[str, str]:
    """Return the names, in the order in which they were added, each with the label that it counts as, or ''."""
    found: dict[str, str] = json.loads(store.get(PERSONAL) or "{}")
    return found


def add_activity(store: WindowStore, name: str, labels: tuple[str, ...]) -> str:
    """Add an activity and return its name without needless spaces; its windows are not sent.

    labels: the federation's.

    Raises:
        LabelError: if it has no name, is there already, or there are too many.
    """
    known = personal_activities(store)
    try:
        name = checked(" ".join(name.split()))
    except ValueError as error:
        raise LabelError(f"this is no name: {error}") from error
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise LabelError(f"a name has 1 to {MAX_NAME_LENGTH} letters; this one has {len(name)}")
    if name.lower() in {activity.lower() for activity in (*labels, *known)}:
        raise LabelError(f"an activity {name} already exists; choose another name")
    if len(known) >= MAX_ACTIVITIES:
        raise LabelError(f"there are already {len(known)} activities of your own, the maximum; remove one first")
    store.put(**{PERSONAL: json.dumps({**known, name: ""})})
    return name


def remove_activity(store: WindowStore, name: str) -> int:
    """Forget an activity; its windows stay, without a label. Returns how many.

    Raises:
        LabelError: if there is none of that name.
    """
    known = personal_activities(store)
    _require(name, known)
    with store.writing() as db:
        changed = db.execute("UPDATE windows SET activity = '' WHERE activity = ?", (name,)).rowcount
        db.execute("DELETE FROM spans WHERE activity = ?", (name,))
    del known[name]
    store.put(**{PERSONAL: json.dumps(known)})
    return changed


def count_as(store: WindowStore, name: str, label: str, labels: tuple[str, ...]) -> None:
    """Let an activity's windows be sent as one of the federation's activities; '': send them no more.

    Raises:
        LabelError: if there is no such activity.
    """
    known = personal_activities(store)
    _require(name, known)
    if label:
        _require(label, labels)
    store.put(**{PERSONAL: json.dumps({**known, name: label})})


def _require(name: str, known: tuple[str, ...] | dict[str, str]) -> None:
    if name not in known:
        raise LabelError(f"there is no activity {name!r}; {did_you_mean(name, known)}")
