"""What an engine is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from federation.records import Broadcast, Client, Examples
from federation.training.local_round import LocalRound, Setup


class ClientJob(NamedTuple):
    """One client's work in a round; `max_steps` cuts a straggler's short."""

    client_id: str
    setup: Setup
    client: Client
    broadcast: Broadcast
    examples: Examples
    max_steps: int | None = None


class Engine(Protocol):
    """Runs jobs; results come as they are ready, in any order."""

    def run(self, jobs: Sequence[ClientJob], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield (client id, result) for every job."""
        ...
