"""Local: every client trains alone and nothing travels; the lower bound of the federated methods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Broadcast, Client, Tensors, TrainingStats, Tree, Update


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """No communication: uploads and broadcasts are empty."""

    name: ClassVar[str] = "local"
    has_global_model: ClassVar[bool] = False
    averages_parameters: ClassVar[bool] = False
    mixes_architectures: ClassVar[bool] = True

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
        """The server has no state."""
        return {}

    def fold(self, state: Tree, accumulator: Any, update: Update) -> Any:
        """Nothing to add."""
        return None

    def finish(self, state: Tree, accumulator: Any) -> Tree:
        """Nothing to combine."""
        return state

    def aggregate(self, state: Tree, updates: Iterable[Update]) -> Tree:
        """Keep the empty state."""
        return state
