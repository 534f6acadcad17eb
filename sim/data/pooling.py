"""Everybody's training examples in one place, for a method that no real federation could run."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add

import torch

from federation.records import Examples
from sim.data.federated_data import ClientData, FederatedData, PartitionClasses, joined

EVERYONE = "everyone"


def pooled(data: FederatedData) -> FederatedData:
    """Move all training examples to one client, `everyone`; the others keep only what they are scored on.

    `everyone` has no test set, so it has no score of its own: only the pooled model's on the clients' sets is left.
    """
    union = joined([client.train for client in data.clients.values()])
    tested = {
        name: replace(
            client, train=_none_of(client.train), partition_classes=_without_training(client.partition_classes)
        )
        for name, client in data.clients.items()
    }
    dealt = [client.partition_classes.train for client in data.clients.values() if client.partition_classes is not None]
    classes = PartitionClasses(torch.cat(dealt), dealt[0][:0]) if dealt else None
    clients = {**tested, EVERYONE: ClientData(union, _none_of(union), partition_classes=classes)}
    statistics = {**data.statistics, EVERYONE: reduce(add, (data.statistics[name] for name in data.clients))}
    return replace(data, clients=clients, statistics=statistics)


def _without_training(dealt: PartitionClasses | None) -> PartitionClasses | None:
    return None if dealt is None else dealt._replace(train=dealt.train[:0])


def _none_of(examples: Examples) -> Examples:
    return Examples(examples.x[:0], examples.y[:0])
