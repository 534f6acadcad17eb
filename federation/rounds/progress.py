"""What follows from how rounds and updates ended: whether to go on, to pause, or to leave a client out.

The simulation and the server ask these same functions, so that both open the same rounds with the same cohorts. Round
numbers rise with every round, failed ones too, and so do all draws that are named by them.
"""

from __future__ import annotations

from typing import NamedTuple

from federation.plan import RoundSettings
from federation.rounds.server_round import RoundPhase


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
