"""What this device was promised of privacy when it enrolled, and which plan it refuses for promising less.

Both are values in the device's database, which outlive restarts, epochs and federations that are re-created. The server
can't change a pin: a person accepts other promises with the command line or on the page.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from edge_agent.errors import StoreError
from edge_agent.storage.state_store import StateStore
from federation.privacy.promises import PrivacyPromises, describe_promises, required, shortfall

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
        raise StoreError("this device refuses no plan, so there is nothing to accept")
    if shown and shown != describe_promises(plan.promises):
        raise StoreError("the server has changed its plan since; look at what it promises now")
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
    words = [f"Required here, whatever the server says: {describe_promises(required(pinned, settings))}"]
    if plan is not None:
        words += [describe_refusal(store), f"The server's plan promises now: {describe_promises(plan.promises)}"]
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
