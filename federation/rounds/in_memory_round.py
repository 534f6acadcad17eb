"""A round whose clients are kept in memory, for a driver without rows: the simulation, and the machine's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from federation.plan import RoundSettings
from federation.rounds.server_round import ClientStatus, DeviceLost, Event, Round, Step, UpdateArrived, step


@dataclass
class InMemoryRound:
    """Feeds events to the round machine, and keeps where each client stands."""

    settings: RoundSettings
    round: Round
    statuses: dict[str, ClientStatus]
    received: dict[str, int] = field(default_factory=dict)
    """How many rounds late the accepted update of each client is."""

    @classmethod
    def of(cls, settings: RoundSettings, number: int, cohort: Sequence[str]) -> InMemoryRound:
        """Begin a round with a cohort."""
        return cls(settings, Round(number, len(cohort)), dict.fromkeys(cohort, ClientStatus.WAITING))

    def feed(self, event: Event) -> Step:
        """Apply one event.

        Raises:
            RoundError: if the event cannot happen in this phase.
        """
        client = event.client_id if isinstance(event, UpdateArrived | DeviceLost) else ""
        result = step(self.settings, self.round, event, self.statuses.get(client, ClientStatus.UNINVITED))
        if result.status is not None:
            self.statuses[client] = result.status
        if result.status is ClientStatus.RECEIVED and isinstance(event, UpdateArrived):
            self.received[client] = self.round.number - event.base_round
        self.round = result.round
        return result
