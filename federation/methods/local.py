"""Local: every client trains alone and nothing travels; the lower bound of the federated methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from federation.aggregation.averaging import Accumulator
from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Broadcast, Client, Tensors, TrainingStats, Tree, Update, UploadGroup


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """No communication: uploads and broadcasts are empty."""

    name: ClassVar[str] = "local"
    averages_parameters: ClassVar[bool] = False
    needs_single_updates: ClassVar[str] = "sends nothing that could be added up"
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = {}

    @property
    def has_global_model(self) -> bool:
        """Every client has its own."""
        return False

    @property
    def mixes_architectures(self) -> bool:
        """Nothing is shared."""
        return True

    def shared(self, name: str) -> bool:
        """Share nothing."""
        return False

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Keep the client's own model."""
        return client, {}

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send nothing."""
        return client, {}

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Keep no state."""
        return {}

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> Accumulator:
        """Add nothing."""
        return Accumulator()

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Combine nothing."""
        return state

    def aggregate(self, state: Tree, updates: Iterable[Update]) -> Tree:
        """Keep the empty state."""
        return state
