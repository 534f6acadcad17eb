"""Each client's normalized training and test examples, as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from federation.records import Examples
from har_pipeline import ChannelStatistics


@dataclass(frozen=True)
class ClientData:
    """One client's examples: train and test, x (n, ...) float32, either of which may be empty."""

    train: Examples
    test: Examples


@dataclass(frozen=True)
class FederatedData:
    """All clients' examples; `newcomers` are held out of the federation until it is done."""

    labels: tuple[str, ...]
    clients: Mapping[str, ClientData]
    statistics: Mapping[str, ChannelStatistics]  # what each client was normalized with
    split_leaks: bool
    newcomers: Mapping[str, ClientData] = field(default_factory=dict)

    @cached_property
    def train_sizes(self) -> dict[str, int]:
        """How many training examples each client has that has any: those that rounds are made of."""
        sizes = {name: len(client.train.y) for name, client in self.clients.items()}
        return {name: size for name, size in sizes.items() if size}

    def union_test(self) -> Examples:
        """Every client's test examples, one client after the other in the order of `clients`; copied once."""
        return self._union

    @cached_property
    def _union(self) -> Examples:
        return joined([client.test for client in self.clients.values()])

    def per_class(self) -> dict[str, Any]:
        """Count examples by client, part and class, for `clients.json`."""
        return {name: self._counts(client) for name, client in self.clients.items()}

    def _counts(self, client: ClientData) -> dict[str, Any]:
        train, test = (torch.bincount(p.y, minlength=len(self.labels)).tolist() for p in (client.train, client.test))
        return {"train": sum(train), "test": sum(test), "train_per_class": train, "test_per_class": test}


def joined(parts: list[Examples]) -> Examples:
    """Lay examples together in the order in which they come."""
    return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
