"""Clients made anew from clients: joined by what they have in common, or dealt as a partition says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import torch

from federation.records import Examples
from federation.tasks.task import Task
from sim.data.federated_data import ClientData, FederatedData, joined, joined_or_none
from sim.data.partitions import Natural, Partition, Pool, Share, class_counts, with_validation
from sim.data.partitions.partition import apportion, assign_by_counts, shuffle_by_class


def grouped(data: FederatedData, groups: Mapping[str, Sequence[str]]) -> FederatedData:
    """Make one client of each group of clients; each one's training and test examples stay what they are."""
    clients = {name: _together([data.clients[member] for member in members]) for name, members in groups.items()}
    statistics = {name: reduce(add, (data.statistics[m] for m in members)) for name, members in groups.items()}
    return replace(data, clients=clients, statistics=statistics)


def _together(members: Sequence[ClientData]) -> ClientData:
    train, test = joined([member.train for member in members]), joined([member.test for member in members])
    return ClientData(train, test, joined_or_none(member.validation for member in members))


def repartition(data: FederatedData, partition: Partition, seed: int, validation_share: float = 0.0) -> FederatedData:
    """Lay all clients' examples together and deal them by a partition; each stays what it was, for test or validation.

    With test="split" in the partition training and test are mixed, windows of one recording that overlap leak, and of
    what a client gets to train on the last `validation_share` of each class is for validation.
    """
    pool, everything = _pooled(data)
    shares = partition.divide(pool, seed)
    if partition.test == "split":
        shares = with_validation(shares, pool.y, validation_share)
    clients = {name: ClientData(*(_rows(everything, rows) for rows in share)) for name, share in shares.items()}
    if partition.test == "published":
        held = _validation(data, shares, pool, partition, seed)
        clients = {name: replace(client, validation=held.get(name)) for name, client in clients.items()}
    statistics = dict.fromkeys(shares, reduce(add, data.statistics.values()))
    leaks = data.split_leaks or (partition.test == "split" and partition.test_share > 0)
    return replace(data, clients=clients, statistics=statistics, split_leaks=leaks)


def _validation(
    data: FederatedData, shares: Mapping[str, Share], pool: Pool, partition: Partition, seed: int
) -> dict[str, Examples]:
    """Deal what was cut off for validation: to its owner, or in proportion to who trains on how much of each class."""
    if isinstance(partition, Natural) or not data.validation:
        return data.validation
    kept = joined(list(data.validation.values()))
    y = kept.y.cpu().numpy()
    all_of_it = Pool(y, pool.classes, np.ones(len(y), dtype=bool))
    trained = class_counts(shares, pool.y, pool.classes, "train")
    counts = [apportion(int(size), trained[:, c], at_least=1) for c, size in enumerate(all_of_it.sizes())]
    assigned = assign_by_counts(
        shuffle_by_class(all_of_it, all_of_it.train, seed, "validation"), np.stack(counts, axis=1)
    )
    return {name: _rows(kept, rows) for name, rows in zip(shares, assigned, strict=True)}


def current_partition(data: FederatedData, task: Task) -> tuple[dict[str, Share], np.ndarray]:
    """Return each client's positions in one pile, and the classes (n,) it was dealt by, to be shown as a partition."""
    sizes = [len(part.y) for client in data.clients.values() for part in (client.train, client.test)]
    ends = np.cumsum(sizes)
    rows = iter(np.split(np.arange(ends[-1]), ends[:-1]))
    shares = {name: Share(train=next(rows), test=next(rows)) for name in data.clients}
    classes = [client.classes(part, task) for client in data.clients.values() for part in ("train", "test")]
    return shares, torch.cat(classes).cpu().numpy()


def _pooled(data: FederatedData) -> tuple[Pool, Examples]:
    parts = [part for client in data.clients.values() for part in (client.train, client.test)]
    sizes = [len(part.y) for part in parts]
    train = np.repeat(np.tile([True, False], len(data.clients)), sizes)
    owner = np.repeat(np.repeat(list(data.clients), 2), sizes)
    return Pool(_pooled_classes(data), len(data.partition_labels), train, owner), joined(parts)


def _pooled_classes(data: FederatedData) -> np.ndarray:
    parts = [part.y for client in data.clients.values() for part in (client.train, client.test)]
    classes: np.ndarray = torch.cat(parts).cpu().numpy()
    return classes


def _rows(everything: Examples, rows: np.ndarray) -> Examples:
    index = torch.from_numpy(rows).to(everything.y.device)
    return Examples(everything.x[index], everything.y[index])
