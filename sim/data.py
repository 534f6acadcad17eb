"""From windows to each client's normalized training and test examples, as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from federation.records import Examples
from har_pipeline import ChannelStatistics, ClientWindows, WindowedDataset, normalize_clients, split_client
from sim.errors import SettingsError
from sim.settings import Normalization, Split


@dataclass(frozen=True)
class ClientData:
    """One client's examples: train and test, x (n, ...) float32, either of which may be empty."""

    train: Examples
    test: Examples


@dataclass(frozen=True)
class FederatedData:
    """All clients' examples."""

    labels: tuple[str, ...]
    clients: Mapping[str, ClientData]
    statistics: Mapping[str, ChannelStatistics]  # what each client was normalized with
    split_leaks: bool

    @property
    def train_sizes(self) -> dict[str, int]:
        """How many training examples each client has that has any: those that rounds are made of."""
        sizes = {name: len(client.train.y) for name, client in self.clients.items()}
        return {name: size for name, size in sizes.items() if size}

    def union_test(self) -> Examples:
        """Every client's test examples, one client after the other in the order of `clients`; copied once."""
        return self._union

    @cached_property
    def _union(self) -> Examples:
        tests = [client.test for client in self.clients.values()]
        return Examples(torch.cat([test.x for test in tests]), torch.cat([test.y for test in tests]))

    def per_class(self) -> dict[str, Any]:
        """Count examples by client, part and class, for `clients.json`."""
        return {name: self._counts(client) for name, client in self.clients.items()}

    def _counts(self, client: ClientData) -> dict[str, Any]:
        train, test = (torch.bincount(p.y, minlength=len(self.labels)).tolist() for p in (client.train, client.test))
        return {"train": sum(train), "test": sum(test), "train_per_class": train, "test_per_class": test}


def federated_data(
    dataset: WindowedDataset, *, split: Split, normalization: Normalization, seed: int, device: str
) -> FederatedData:
    """Split and normalize every client's windows; clients without training windows are left out.

    Raises:
        SettingsError: if no client has a training window.
    """
    splits = {
        name: split_client(windows, split, seed=seed, settings=dataset.settings)
        for name, windows in dataset.clients.items()
    }
    usable = {name: windows for name, windows in dataset.clients.items() if len(splits[name].train)}
    if not usable:
        raise SettingsError(f"no client of {dataset.name} has a training window; are the recordings long enough?")
    normalized, statistics = normalize_clients(usable, splits, normalization)
    clients = {
        name: ClientData(*(_examples(windows, rows, device) for rows in (splits[name].train, splits[name].test)))
        for name, windows in normalized.items()
    }
    leaks = any(splits[name].leaks for name in usable)
    return FederatedData(dataset.labels, clients, statistics, leaks)


def _examples(windows: ClientWindows, rows: np.ndarray, device: str) -> Examples:
    return Examples(torch.from_numpy(windows.x[rows]).to(device), torch.from_numpy(windows.y[rows]).to(device))
