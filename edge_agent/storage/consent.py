"""The user's consent on this device: whether it takes part, and the privacy that a plan must promise.

Both are values in the device's database, which the agent looks at four times a second; they outlive restarts, epochs
and federations that are re-created. The server can't change a pin: a person accepts other promises with the command
line or on the page. A continuous federation keeps what each device has sent last, so that it can be taken out again;
what rounds have made of updates cannot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from edge_agent.errors import StoreError
from edge_agent.storage.state_store import StateStore
from federation.privacy.promises import PrivacyPromises, describe_promises, required, shortfall

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
            "the next version of the model excludes this device's windows"
            if self.is_confirmed
            else "the server hasn't confirmed it yet; the request is repeated until it does"
        )
        return f"This device was withdrawn on {when}: {done}. It sends nothing until `take-part`."


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


PIN, REFUSED = "privacy_pin", "refused_plan"


class RefusedPlan(NamedTuple):
    """A plan that promises less than this device requires: why it is refused, and what it promises."""

    reason: str
    promises: PrivacyPromises


def pinned_promises(store: StateStore) -> PrivacyPromises | None:
    """Return what was promised at enrolment, or accepted since; None before that.

    Raises:
        StoreError: if what is stored can't be read: the device must not take it for no promise.
    """
    text = store.get(PIN)
    try:
        return PrivacyPromises.model_validate_json(text) if text else None
    except ValidationError as error:
        raise StoreError(
            f"what was promised to this device of privacy can't be read from {store.path}; restore the file, or enrol "
            "into a new data folder"
        ) from error


def keep_pin(store: StateStore, promises: PrivacyPromises) -> None:
    """Require what these promises say from now on."""
    store.put(**{PIN: promises.model_dump_json()})


def pin_promises(folder: Path, promises: PrivacyPromises) -> None:
    """Require from now on what the first answer to an enrolment promises; later answers change nothing.

    Raises:
        StoreError: if what was pinned before can't be read.
    """
    with closing(StateStore(folder)) as store:
        if pinned_promises(store) is None:
            keep_pin(store, promises)


def note_refused_plan(store: StateStore, reason: str, promises: PrivacyPromises) -> None:
    """Keep why the present plan is refused; an empty reason: it isn't."""
    store.put(**{REFUSED: json.dumps([reason, promises.model_dump()]) if reason else ""})


def refused_plan(store: StateStore) -> RefusedPlan | None:
    """Return the plan that this device refuses, if it refuses one."""
    text = store.get(REFUSED)
    if not text:
        return None
    reason, promises = json.loads(text)
    return RefusedPlan(reason, PrivacyPromises.model_validate(promises))


def promises_to_accept(store: StateStore) -> str:
    """Say what the refused plan promises; empty where none is refused."""
    plan = refused_plan(store)
    return "" if plan is None else describe_promises(plan.promises)


def accept_refused_plan(store: StateStore, settings: PrivacyPromises, shown: str = "") -> PrivacyPromises:
    """Require no more than the refused plan promises, as the person at the device accepts; return what that is.

    shown: what the person was shown of the plan's promises; empty where they are shown what comes back.

    Raises:
        StoreError: if no plan is refused, another one is than was shown, or the settings require more than it promises.
    """
    plan = refused_plan(store)
    if plan is None:
        raise StoreError("this device doesn't refuse a plan, so there is nothing to accept")
    if shown and shown != describe_promises(plan.promises):
        raise StoreError("the server has since changed its plan; check its current promises")
    if reason := shortfall(plan.promises, required(None, settings)):
        raise StoreError(
            f"{reason} by [privacy] require in its settings file: change it there, and start the agent again"
        )
    keep_pin(store, plan.promises)
    return plan.promises


def describe_privacy(store: StateStore, settings: PrivacyPromises) -> list[str]:
    """Say what this device requires, and why it refuses the plan if it does; nothing before it has heard a plan."""
    pinned, plan = pinned_promises(store), refused_plan(store)
    if pinned is None and not settings.model_fields_set:
        return []
    words = [f"Required by this device: {describe_promises(required(pinned, settings))}"]
    if plan is not None:
        words += [describe_refusal(store), f"The server's plan promises: {describe_promises(plan.promises)}"]
    return words


def describe_refusal(store: StateStore) -> str:
    """Say that this device refuses the server's plan, and why; empty where it doesn't."""
    plan = refused_plan(store)
    if plan is None:
        return ""
    return (
        f"It refuses the server's plan: {plan.reason}. It sends nothing about its windows until the plan promises "
        "enough, or a person here accepts what it promises (`python -m edge_agent privacy --accept`, or its page)."
    )


HOME_ASSISTANT_WISH, HOME_ASSISTANT_TOPICS, HOME_ASSISTANT_PROBLEM = (
    "home_assistant",
    "home_assistant_topics",
    "home_assistant_problem",
)


def home_assistant_is_off(store: StateStore) -> bool:
    """Whether the person has switched it off."""
    return store.get(HOME_ASSISTANT_WISH) == "off"


def switch_home_assistant(store: StateStore, *, on: bool) -> None:
    """Note the person's wish, which a running agent follows within a second."""
    store.put(**{HOME_ASSISTANT_WISH: "" if on else "off"})


def noted_topics(store: StateStore) -> tuple[str, ...]:
    """Return the topics that hold something of this device; none once all was removed."""
    return tuple(json.loads(store.get(HOME_ASSISTANT_TOPICS) or "[]"))


def note_topics(store: StateStore, topics: Iterable[str]) -> None:
    """Note which topics hold something of this device."""
    store.put(**{HOME_ASSISTANT_TOPICS: json.dumps(list(dict.fromkeys(topics)))})
