"""When a continuous federation publishes a version, and what it is made of, without I/O.

Such a federation has no cohort and no deadline. Whoever has enrolled sends, and what a client sends replaces what it
sent before; a client may also take its part out. A publication is a round (`federation.rounds.server_round`) that
begins where others have closed: it aggregates the changes since the last version, and is published or fails with a
reason, after which its changes still wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from federation.plan import PublicationSettings
from federation.rounds.server_round import Action, Round, RoundPhase, Step


@dataclass(frozen=True)
class WaitingChanges:
    """The clients whose part came, changed or went since the last version."""

    count: int = 0
    oldest_at: float = 0.0  # Unix time of the change that waits longest


def due_at(settings: PublicationSettings, waiting: WaitingChanges, last_at: float | None) -> float | None:
    """Return when the next version is to be published, in Unix time; None while nothing, or too little, has changed.

    `last_at` is when the last publication ended, with whatever result; None before the first. With too few changes it
    is when the oldest of them has waited for long enough.
    """
    if not waiting.count:
        return None
    rested_at = waiting.oldest_at if last_at is None else last_at + settings.interval_s
    if waiting.count >= settings.min_changes:
        return rested_at
    return max(rested_at, waiting.oldest_at + settings.max_wait_s)


def is_due(settings: PublicationSettings, waiting: WaitingChanges, last_at: float | None, now: float) -> bool:
    """Whether a version is to be published now.

    Times of a day to come were written before the clock was set back: they tell nothing, and nobody waits for them.
    """
    waiting = WaitingChanges(waiting.count, min(waiting.oldest_at, now))
    known = last_at if last_at is not None and last_at <= now else None
    at = due_at(settings, waiting, known)
    return at is not None and at <= now


def begin(number: int) -> Step:
    """Begin the publication of that number; the driver has noted which changes it takes."""
    return Step(Round(number, pending=0, phase=RoundPhase.AGGREGATING), (Action.AGGREGATE,))
