"""A small federation for the tests: three clients of unequal size, float64, a network that every method can use."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch

import models
from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Client, Examples, Tree, Update
from federation.training.client_round import Setup, train_one
from federation.training.forward import initial_client, initial_model, network
from federation.training.local_round import LocalRound

SIZES = {"ada": 11, "bob": 4, "cyd": 7}


class Federation(NamedTuple):
    """Everything that a round needs."""

    setup: Setup
    initial: Client
    examples: dict[str, Examples]
    state: Tree

    def train(self, name: str, client: Client | None = None, round_number: int = 1) -> LocalRound:
        """Run one client's round alone."""
        broadcast = self.setup.method.broadcast(self.state, name)
        return train_one(
            self.setup,
            client or self.initial,
            broadcast,
            self.examples[name],
            client_id=name,
            round_number=round_number,
        )

    def updates(self) -> list[Update]:
        """Run every client's round alone."""
        return [Update(name, n, 1, self.train(name).upload) for name, n in SIZES.items()]

    def next(self) -> Federation:
        """Return the federation after every client's first round."""
        return self._replace(state=self.setup.method.aggregate(self.state, self.updates()))


def federation(
    method: Method,
    *,
    dropout: float = 0.0,
    epochs: int = 2,
    dtype: torch.dtype = torch.float64,
    autocast: torch.dtype | None = None,
) -> Federation:
    """Build the federation for a method."""
    training = TrainingConfig(
        classes=3, feature_dim=16, epochs=epochs, batch_size=4, optimizer="sgd", lr=0.05, momentum=0.5
    )
    options = {"channels": [8, 8], "feature_dim": 16, "hidden": 8, "dropout": dropout, "prototypes": [5]}
    module = initial_model(lambda: models.build("cnn_alp", classes=3, **options), training.seed).to(dtype)
    setup = Setup(method, training, network(module, autocast=autocast))
    initial = method.init_client_state(initial_client(module), training)
    state = method.server_init(initial.params, initial.buffers, training)
    examples = {name: mine._replace(x=mine.x.to(dtype)) for name, mine in _examples().items()}
    return Federation(setup, initial, examples, state)


@functools.cache
def _examples() -> dict[str, Examples]:
    rng = np.random.default_rng(7)
    return {
        name: Examples(torch.tensor(rng.normal(size=(n, 128, 6))), torch.tensor(rng.integers(0, 3, n)))
        for name, n in SIZES.items()
    }
