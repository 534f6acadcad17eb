"""A small federation for the tests: three clients of unequal size, float64, a network that every method can use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import models
from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Client, Examples, Tree, Update
from federation.tasks import TASKS
from federation.training.client_round import train_one
from federation.training.forward import initial_client, initial_model, network
from federation.training.local_round import LocalRound, Setup
from gaitway.tasks import DEFAULT_TASK, TargetKind
from tests.federation.tiny_networks import WIDTH, TinyAutoencoder, TinySegmenter

SIZES = {"ada": 11, "bob": 4, "cyd": 7}
AS_FEDAVG = ("local", "fedavgm", "fedadam", "fedyogi", "fedatt", "fesem", "fedper")
"""Methods with FedAvg's step and sums."""


def each_step(names: Iterable[str]) -> list[Any]:
    """Return the names as parameters of a test of the step; those that have FedAvg's are left to CI."""
    return [pytest.param(name, marks=pytest.mark.ci if name in AS_FEDAVG else ()) for name in names]


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
    task: str = DEFAULT_TASK.name,
    network_name: str | None = None,
    dropout: float = 0.0,
    epochs: int = 2,
    dtype: torch.dtype = torch.float64,
    autocast: torch.dtype | None = None,
) -> Federation:
    """Build the federation for a method and a task; its network is a tiny one, or one of the table."""
    learnt = NETWORKS[network_name or TASKS[task].target]
    training = TrainingConfig(
        classes=learnt.classes,
        feature_dim=learnt.feature_dim,
        epochs=epochs,
        batch_size=4,
        optimizer="sgd",
        lr=0.05,
        momentum=0.5,
    )
    module = initial_model(lambda: learnt.build(dropout), training.seed).to(dtype)
    setup = Setup(method, training, network(module, autocast=autocast), TASKS[task]())
    initial = method.init_client_state(initial_client(module), training)
    state = method.server_init(initial.params, initial.buffers, training)
    examples = {
        name: mine._replace(x=mine.x.to(dtype)) for name, mine in _examples(network_name or TASKS[task].target).items()
    }
    return Federation(setup, initial, examples, state)


def _classifier(dropout: float, classes: int = 3) -> nn.Module:
    options = {"channels": [8, 8], "feature_dim": 16, "hidden": 8, "dropout": dropout, "prototypes": [5]}
    return models.build("har_cnn_alp", classes=classes, **options)


def _of_the_table(name: str, **options: Any) -> Callable[[float], nn.Module]:
    return lambda dropout: models.build(name, classes=3, **options)


class _Learnt(NamedTuple):
    """A network, the length of its features, and the shapes of an example and of its target."""

    build: Callable[[float], nn.Module]
    feature_dim: int
    x: tuple[int, ...]
    y: tuple[int, ...] = ()
    classes: int = 3


NETWORKS = {
    TargetKind.CLASS: _Learnt(_classifier, 16, (128, 6)),
    TargetKind.NUMBER: _Learnt(lambda dropout: _classifier(dropout, 1), 16, (128, 6), classes=1),
    TargetKind.MASK: _Learnt(lambda dropout: TinySegmenter(3, dropout=dropout), WIDTH, (3, 8, 6), (8, 6)),
    TargetKind.WINDOW: _Learnt(lambda dropout: TinyAutoencoder(dropout=dropout), WIDTH, (128, 6)),
    "segmenter_small": _Learnt(
        _of_the_table("segmenter_small", channels=[8, 8, 8, 8], feature_dim=8), 8, (3, 18, 10), (18, 10)
    ),
    "deeplab_v3plus": _Learnt(
        _of_the_table("deeplab_v3plus", width=0.1, channels=8, quarter_channels=8, dilations=[2]), 8,
        (3, 18, 10), (18, 10),
    ),
    "segmenter_small, encoder": _Learnt(
        _of_the_table("segmenter_small", channels=[8, 8, 8, 16], feature_dim=8, features_at="encoder"), 16,
        (3, 34, 18), (34, 18),
    ),
    "dense": _Learnt(_of_the_table("dense", input_shape=[12], hidden=[6, 10]), 6, (12,)),
    "dense, last layer": _Learnt(
        _of_the_table("dense", input_shape=[12], hidden=[6, 10], features_at="last_layer"), 10, (12,)
    ),
}  # fmt: skip
"""By a task's kind of target, for which they are a tiny network, or one of the table by its name."""


@functools.cache
def _examples(network_name: str) -> dict[str, Examples]:
    """Generated examples; a twelfth of all pixels is ignored."""
    rng, learnt = np.random.default_rng(7), NETWORKS[network_name]
    found = {
        name: Examples(torch.tensor(rng.normal(size=(n, *learnt.x))), torch.tensor(rng.integers(0, 3, (n, *learnt.y))))
        for name, n in SIZES.items()
    }
    if network_name == TargetKind.NUMBER:
        found = {name: mine._replace(y=mine.y.double() + 0.5) for name, mine in found.items()}
    if learnt.y:
        for mine in found.values():
            mine.y.view(-1)[::12] = 255
    return found
