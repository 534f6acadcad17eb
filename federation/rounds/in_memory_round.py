"""A round whose clients are kept in memory, for a driver without rows: the simulation, and the machine's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from federation.plan import RoundSettings
from federation.rounds.server_round import DeviceLost, Event, Round, Standing, Step, UpdateArrived, step


@dataclass
class RollCall:
    """Feeds events to the round machine, and keeps where each client stands."""

    settings: RoundSettings
    round: Round
    standings: dict[str, Standing]
    received: dict[str, int] = field(default_factory=dict)
    """How many rounds late the accepted update of each client is."""

    @classmethod
    def of(cls, settings: RoundSettings, number: int, cohort: Sequence[str]) -> RollCall:
        """Begin a round with a cohort."""
        return cls(settings, Round(number, len(cohort)), dict.fromkeys(cohort, Standing.WAITING))

    def feed(self, event: Event) -> Step:
        """Apply one event.

        Raises:
            RoundError: if the event cannot happen in this phase.
        """
        client = event.client_id if isinstance(event, UpdateArrived | DeviceLost) else ""
        result = step(self.settings, self.round, event, self.standings.get(client, Standing.UNINVITED))
        if result.standing is not None:
            self.standings[client] = result.standing
        if result.standing is Standing.RECEIVED and isinstance(event, UpdateArrived):
            self.received[client] = self.round.number - event.base_round
        self.round = result.round
        return result
