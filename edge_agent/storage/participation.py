"""Whether the person lets this device take part: the wish of the command line and the page, and what became of it.

A wish is one value in the device's database, which the agent looks at four times a second; it outlives restarts, and
federations that are re-created. A continuous federation keeps what each device has sent last, so that it can be taken
out again; what rounds have made of updates cannot.
"""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from edge_agent.errors import StoreError
from edge_agent.storage.state_store import StateStore

WISH = "participation"
"""Name of the person's wish in the store: empty while the device takes part, else JSON with the time of the request."""
CONTINUOUS = "continuous"
"""Name in the store of what the last announcement said of the federation: "yes", "no", or nothing before any.

"masked": yes, and a secure sum of each round adds them.
"""
CONTRIBUTION = "contribution"
"""Name in the store of what the server has of this device, or will have once it has answered."""


class Participation(NamedTuple):
    """The person's wish, since when, and whether the server has confirmed that the device's sums are taken out."""

    takes_part: bool
    withdrawn_at: float | None = None
    is_confirmed: bool = False

    @property
    def words(self) -> str:
        """Say it to the person, in a sentence or two."""
        if self.withdrawn_at is None:
            return "This device takes part."
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.withdrawn_at))
        done = (
            "the next version of the model is without this device's windows"
            if self.is_confirmed
            else "the server has not confirmed it yet, and is asked until it does"
        )
        return f"This device was withdrawn on {when}: {done}. It sends nothing until `take-part` is asked for."


def participation(store: StateStore) -> Participation:
    """Return the person's wish, and what became of it."""
    wish, sent = store.get(WISH), json.loads(store.get(CONTRIBUTION) or "{}")
    if not wish:
        return Participation(True)
    if store.get(CONTINUOUS) == "masked":
        is_confirmed = True  # each version's sum is of those alone who add to it
    else:
        is_confirmed = sent.get("kind") == "withdrawn" and sent.get("update_id") not in store.outbox()
    return Participation(False, float(json.loads(wish)["at"]), is_confirmed)


def can_withdraw(store: StateStore) -> bool:
    """Whether the federation can take out what this device has sent; also while no announcement was heard yet."""
    return store.get(CONTINUOUS) != "no"


def withdraw(store: StateStore) -> Participation:
    """Have the device's sums taken out, and nothing sent any more; asked twice, the first time counts.

    Raises:
        StoreError: if the federation works in rounds.
    """
    if not can_withdraw(store):
        raise StoreError(
            "this federation works in rounds, whose models cannot be freed of one device's updates; end the agent to "
            "send no more, and ask the server's operator to delete this device"
        )
    if not store.get(WISH):
        store.put(**{WISH: json.dumps({"at": time.time()})})
    return participation(store)


def take_part(store: StateStore) -> Participation:
    """Let the device take part, again: it sends its sums as one that has just joined."""
    store.put(**{WISH: ""})
    return participation(store)
