"""Activities that only this device's person has: their names, and what their windows count as in what is sent.

They are classes behind the federation's, which the device learns for itself. Their windows are in nothing that is sent,
unless the person says as which of the federation's activities they may count; the name is never sent.
"""

from __future__ import annotations

import json

from edge_agent.errors import LabelError
from edge_agent.storage.window_store import PERSONAL, WindowStore
from gaitway.errors import did_you_mean
from gaitway.plain_text import checked

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
        raise LabelError(f"there is an activity {name} already; choose another name")
    if len(known) >= MAX_ACTIVITIES:
        raise LabelError(f"there are {len(known)} activities of your own, and no more fit; remove one first")
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
