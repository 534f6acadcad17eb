"""What the device's database knows of Home Assistant: the person's wish, and what its broker retains of the device.

The topics are noted before anything is told, so that all of it can be removed, also after the settings have changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from edge_agent.storage.state_store import StateStore

WISH, TOPICS, PROBLEM = "home_assistant", "home_assistant_topics", "home_assistant_problem"


def is_switched_off(store: StateStore) -> bool:
    """Whether the person has switched it off."""
    return store.get(WISH) == "off"


def switch(store: StateStore, *, on: bool) -> None:
    """Note the person's wish, which a running agent follows within a second."""
    store.put(**{WISH: "" if on else "off"})


def noted_topics(store: StateStore) -> tuple[str, ...]:
    """Return the topics that hold something of this device; none once all was removed."""
    return tuple(json.loads(store.get(TOPICS) or "[]"))


def note_topics(store: StateStore, topics: Iterable[str]) -> None:
    """Note which topics hold something of this device."""
    store.put(**{TOPICS: json.dumps(list(dict.fromkeys(topics)))})
