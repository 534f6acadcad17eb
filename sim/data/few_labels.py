"""Few labels: a part of the clients have some labelled examples of each class, and nobody has more.

What has no label is not trained on by a task that needs one; it still belongs to the client, whose normalization is
that of all its training examples. Pretraining (the task `masked_reconstruction`) learns from all of them.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import torch
from torch import Tensor

from federation.records import Examples
from federation.seeds import generator
from federation.tasks.task import Task
from sim.data.federated_data import ClientData, FederatedData, PartitionClasses
from sim.errors import SettingsError


def with_few_labels(data: FederatedData, task: Task, per_class: int | None, share: float, seed: int) -> FederatedData:
    """Keep `per_class` training examples of each class (None: all) of ⌈share · K⌉ clients, and none of the others'.

    Clients and examples are drawn by the seed; with more labels a client keeps those that it has with fewer. Nothing is
    left for validation, which would be labels too. Tests stay what they are.

    Raises:
        SettingsError: for a task without classes, which has no use for labels.
    """
    if per_class is None and share == 1:
        return data
    if not task.has_classes:
        raise SettingsError(
            f"--labelled-per-class and --labelled-clients are for tasks that learn from labels; {task.name} uses none, "
            "and learns from every example of every client"
        )
    drawn = sorted(data.clients, key=lambda name: generator(seed, "labelled clients", name).random())
    labelled = set(drawn[: ceil(share * len(drawn))])
    clients = {
        name: _labelled(client, task, (per_class if name in labelled else 0), name, seed)
        for name, client in data.clients.items()
    }
    return replace(data, clients=clients)


def _labelled(client: ClientData, task: Task, per_class: int | None, name: str, seed: int) -> ClientData:
    rows = torch.arange(0 if per_class == 0 else len(client.train.y))
    if per_class and len(rows):
        rows = drawn_rows(task, client, per_class, name, seed)
    dealt = client.partition_classes and PartitionClasses(
        client.partition_classes.train[rows], client.partition_classes.test
    )
    train = client.train if per_class is None else Examples(client.train.x[rows], client.train.y[rows])
    return ClientData(train, client.test, partition_classes=dealt)


def few_shot(task: Task, client: ClientData, shots: int) -> Examples:
    """Take the first k training examples of each class that partitions deal by, in the order in which they came.

    Of recordings that is their order in time: what a new user shows first, before all that is tested.
    """
    classes = client.classes("train", task)
    members = [(classes == label).nonzero().flatten()[:shots] for label in sorted(set(classes.tolist()))]
    rows = torch.cat(members) if members else torch.arange(0)
    return Examples(client.train.x[rows], client.train.y[rows])


def drawn_rows(task: Task, client: ClientData, per_class: int, client_id: str, seed: int) -> Tensor:
    """Draw so many training examples of each class; with more, those that there are with fewer are among them."""
    kept, classes = [], client.classes("train", task)
    for label in sorted(set(classes.tolist())):
        members = (classes == label).nonzero().flatten()
        order = generator(seed, "labelled", client_id, label).permutation(len(members))[:per_class]
        kept.append(members[torch.from_numpy(order).to(members.device)])
    return torch.cat(kept)
