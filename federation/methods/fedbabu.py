"""FedBABU: only the body is trained and averaged, under a fixed initial head; fine-tuning follows.

J. Oh, S. Kim, S.-Y. Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022,
arXiv 2106.06042: the head's learning rate is 0; then all, the head or the body is fine-tuned.

The head is the same for all, since a run's initial weights are, and never travels. A client serves with a personal
copy, fine-tuned from the body that it received and the initial head on the same batches as its local round: two losses
are added that have no parameter in common, so that each model trains as if alone (as in `ditto`).
Differs from the paper: it fine-tunes once, after the last round; a live federation has none, so each round ends with
models that can be served, fine-tuned from the body that it began with for as many epochs as it trains.
Compared with the authors' code (mirrored as github.com/junhyeog/FedBABU) and PFLlib: there too the whole model is
fine-tuned, at the same rate; PFLlib for ten epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Batch, Broadcast, Client, Phase, Tensors, Tree
from federation.records.head import is_base, is_head
from federation.records.tree import merge, prefixed, with_prefix, without_prefix
from federation.tasks.task import Task
from federation.training.forward import Network

_PERSONAL = "personal:"


@dataclass(frozen=True, kw_only=True)
class FedBabu(Method):
    """Body by FedAvg under the initial head; personal model by fine-tuning both."""

    name: ClassVar[str] = "fedbabu"

    fine_tuned: Literal["all", "head", "body"] = "all"  # which part of the personal model moves

    def shared(self, name: str) -> bool:
        """Share the body: not the head, which does not move, nor the personal model."""
        return is_base(name) and not name.startswith(_PERSONAL)

    def init_client_state(self, client: Client, training: TrainingConfig) -> Client:
        """Start the personal model at the initial one."""
        return client._replace(params={**client.params, **prefixed(client.params, _PERSONAL)})

    def receive(self, client: Client, broadcast: Broadcast) -> tuple[Client, Tree]:
        """Put the received body under the initial head, and the personal model at both."""
        client, _ = super().receive(client, broadcast)
        personal = prefixed(without_prefix(client.params, _PERSONAL), _PERSONAL)
        return client._replace(params=merge(client.params, personal)), {}

    def phases(self, training: TrainingConfig) -> tuple[Phase, ...]:
        """Train the shared body, and what is fine-tuned."""
        return (Phase(self._is_trained, training.epochs),)

    def loss(
        self, task: Task, network: Network, params: Tensors, buffers: Tensors, batch: Batch, round_state: Tree
    ) -> tuple[Tensor, Tensors]:
        """Add the personal model's loss to that of the body under the initial head."""
        loss, moved = super().loss(task, network, without_prefix(params, _PERSONAL), buffers, batch, round_state)
        own = task.mean_loss(network.train(with_prefix(params, _PERSONAL), buffers, batch.x, batch.mask), batch)
        return loss + own, moved

    def serving_model(self, client: Client) -> Client:
        """Serve with the fine-tuned model."""
        return client._replace(params=with_prefix(client.params, _PERSONAL))

    def _is_trained(self, name: str) -> bool:
        if not name.startswith(_PERSONAL):
            return is_base(name)
        is_part = {"all": lambda _: True, "head": is_head, "body": is_base}[self.fine_tuned]
        return is_part(name.removeprefix(_PERSONAL))
