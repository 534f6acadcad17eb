"""Clients made anew from clients: joined by what they have in common, or dealt as a partition says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import torch

from federation.records import Examples
from sim.data import ClientData, FederatedData, joined
from sim.partitions import Partition, Pool, Share


def grouped(data: FederatedData, groups: Mapping[str, Sequence[str]]) -> FederatedData:
    """Make one client of each group of clients; each one's training and test examples stay what they are."""
    clients = {name: _together([data.clients[member] for member in members]) for name, members in groups.items()}
    statistics = {name: reduce(add, (data.statistics[m] for m in members)) for name, members in groups.items()}
    return replace(data, clients=clients, statistics=statistics)


def _together(members: Sequence[ClientData]) -> ClientData:
    return ClientData(joined([each.train for each in members]), joined([each.test for each in members]))


def dealt_again(data: FederatedData, partition: Partition, seed: int) -> FederatedData:
    """Lay all clients' examples together and deal them by a partition; what was a test example stays one.

    With test="split" in the partition the two are mixed, and windows of one recording that overlap leak.
    """
    pool, everything = _pooled(data)
    shares = partition.divide(pool, seed)
    clients = {name: ClientData(*(_rows(everything, rows) for rows in share)) for name, share in shares.items()}
    statistics = dict.fromkeys(shares, reduce(add, data.statistics.values()))
    leaks = data.split_leaks or partition.test == "split"
    return replace(data, clients=clients, statistics=statistics, split_leaks=leaks)


def as_dealt(data: FederatedData) -> tuple[dict[str, Share], np.ndarray]:
    """Return each client's positions in one pile, and the classes (n,) in it, to be shown as a partition."""
    sizes = [len(part.y) for client in data.clients.values() for part in (client.train, client.test)]
    ends = np.cumsum(sizes)
    rows = iter(np.split(np.arange(ends[-1]), ends[:-1]))
    shares = {name: Share(train=next(rows), test=next(rows)) for name in data.clients}
    return shares, _pooled_classes(data)


def _pooled(data: FederatedData) -> tuple[Pool, Examples]:
    parts = [part for client in data.clients.values() for part in (client.train, client.test)]
    sizes = [len(part.y) for part in parts]
    train = np.repeat(np.tile([True, False], len(data.clients)), sizes)
    owner = np.repeat(np.repeat(list(data.clients), 2), sizes)
    return Pool(_pooled_classes(data), len(data.labels), train, owner), joined(parts)


def _pooled_classes(data: FederatedData) -> np.ndarray:
    parts = [part.y for client in data.clients.values() for part in (client.train, client.test)]
    classes: np.ndarray = torch.cat(parts).cpu().numpy()
    return classes


def _rows(everything: Examples, rows: np.ndarray) -> Examples:
    index = torch.from_numpy(rows).to(everything.y.device)
    return Examples(everything.x[index], everything.y[index])
