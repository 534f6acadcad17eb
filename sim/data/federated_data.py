"""Each client's normalized training and test examples, as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from federation.records import Examples
from har_pipeline import ChannelStatistics


@dataclass(frozen=True)
class ClientData:
    """One client's examples, x (n, ...) float32, any part of which may be empty.

    `validation` was cut off the training part, to choose a round by; None where nothing was.
    """

    train: Examples
    test: Examples
    validation: Examples | None = None


@dataclass(frozen=True)
class FederatedData:
    """All clients' examples; `new clients` are held out of the federation until it is done."""

    labels: tuple[str, ...]
    clients: Mapping[str, ClientData]
    statistics: Mapping[str, ChannelStatistics]  # what each client was normalized with
    split_leaks: bool
    new_clients: Mapping[str, ClientData] = field(default_factory=dict)

    @cached_property
    def train_sizes(self) -> dict[str, int]:
        """How many training examples each client has that has any: those that rounds are made of."""
        sizes = {name: len(client.train.y) for name, client in self.clients.items()}
        return {name: size for name, size in sizes.items() if size}

    @cached_property
    def validation(self) -> dict[str, Examples]:
        """The validation examples of each client that has any."""
        parts = {name: client.validation for name, client in self.clients.items()}
        return {name: part for name, part in parts.items() if part is not None and len(part.y)}

    @cached_property
    def test(self) -> dict[str, Examples]:
        """Each client's test examples."""
        return {name: client.test for name, client in self.clients.items()}

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
        validation = 0 if client.validation is None else len(client.validation.y)
        sizes = {"train": sum(train), "validation": validation, "test": sum(test)}
        return {**sizes, "train_per_class": train, "test_per_class": test}


def joined_or_none(parts: Iterable[Examples | None]) -> Examples | None:
    """Lay together those that there are; None where there are none."""
    found = [part for part in parts if part is not None]
    return joined(found) if found else None


def joined(parts: list[Examples]) -> Examples:
    """Lay examples together in the order in which they come."""
    return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
