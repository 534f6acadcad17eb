"""Decides from the outcomes of rounds and updates whether to continue, pause, leave out a client, or publish.

The simulation and the server ask these same functions, so that both open the same rounds with the same cohorts. Round
numbers rise with every round, failed ones too, and so do all draws that are named by them.

A continuous federation has no cohort and no deadline. Whoever has enrolled sends, and what a client sends replaces what
it sent before; a client may also take its part out. A publication is a round (`federation.rounds.server_round`) that
begins where others have closed: it aggregates the changes since the last version, and is published or fails with a
reason, after which its changes still wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from federation.plan import PublicationSettings, RoundSettings
from federation.rounds.server_round import Action, Round, RoundPhase, Step


class Progress(NamedTuple):
    """How far a federation is: rounds that were published, and those that failed since the last of them."""

    published: int = 0
    failed_in_a_row: int = 0

    def after(self, phase: RoundPhase) -> Progress:
        """Count a round that has ended."""
        if phase is RoundPhase.PUBLISHED:
            return Progress(self.published + 1)
        return Progress(self.published, self.failed_in_a_row + 1)

    def is_finished(self, settings: RoundSettings) -> bool:
        """Whether all rounds of the plan were published."""
        return self.published >= settings.rounds

    def must_pause(self, settings: RoundSettings) -> bool:
        """Whether so many rounds have failed in a row that somebody should look; who resumes has as many again."""
        return self.failed_in_a_row > 0 and self.failed_in_a_row % settings.max_failed_rounds == 0


def refused_updates(before: int, *, used: bool) -> int:
    """Count a client's updates in a row that were refused, or left out of their round."""
    return 0 if used else before + 1


def is_to_suspend(settings: RoundSettings, refused: int) -> bool:
    """Whether so many of a client's updates in a row were refused that it is not invited any more."""
    return settings.max_refused_updates is not None and refused >= settings.max_refused_updates


RAMP_VERSIONS = 12
"""The interval is whole from this version on; before, a twelfth of it for each: who comes first waits for seconds."""


@dataclass(frozen=True)
class WaitingChanges:
    """The clients whose part came, changed or went since the last version."""

    count: int = 0
    oldest_at: float = 0.0  # Unix time of the change that waits longest


@dataclass(frozen=True)
class LastPublication:
    """When the last publication ended, with whatever result, in Unix time, and how many there were; None: none yet."""

    at: float | None = None
    number: int = 0


def publication_due_at(settings: PublicationSettings, waiting: WaitingChanges, last: LastPublication) -> float | None:
    """Return when the next version is to be published, in Unix time; None while nothing, or too little, has changed.

    With too few changes it is when the oldest of them has waited for long enough.
    """
    if not waiting.count:
        return None
    interval_s = settings.interval_s * min(1.0, last.number / RAMP_VERSIONS)
    rested_at = waiting.oldest_at if last.at is None else last.at + interval_s
    if waiting.count >= settings.min_changes:
        return rested_at
    return max(rested_at, waiting.oldest_at + settings.max_wait_s)


def is_publication_due(
    settings: PublicationSettings, waiting: WaitingChanges, last: LastPublication, now: float
) -> bool:
    """Whether a version is to be published now.

    Times of a day to come were written before the clock was set back: they tell nothing, and nobody waits for them.
    """
    waiting = WaitingChanges(waiting.count, min(waiting.oldest_at, now))
    known = last if last.at is not None and last.at <= now else LastPublication()
    at = publication_due_at(settings, waiting, known)
    return at is not None and at <= now


def begin_publication(number: int) -> Step:
    """Begin the publication of that number; the driver has noted which changes it takes."""
    return Step(Round(number, pending=0, phase=RoundPhase.AGGREGATING), (Action.AGGREGATE,))
