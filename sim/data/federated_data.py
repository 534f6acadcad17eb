"""Each client's normalized training and test examples, as tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from federation.records import Examples
from federation.tasks.task import Task
from federation.training.forward import Moments
from federation.training.window_changes import ChannelScale
from gaitway.input_spec import Fit
from har_pipeline import ChannelStatistics

Part = Literal["train", "test", "validation"]


class PartitionClasses(NamedTuple):
    """The class (n,) int64 that a partition deals each example of a part by, where that is not its target."""

    train: Tensor
    test: Tensor
    validation: Tensor | None = None


@dataclass(frozen=True)
class ClientData:
    """One client's examples, x (n, ...) float32 or bytes of images, any part of which may be empty.

    `validation` was cut off the training part, to choose a round by; None where nothing was. `partition_classes` is
    there where the task alone does not say what class an example is dealt by, or would take long to.
    """

    train: Examples
    test: Examples
    validation: Examples | None = None
    partition_classes: PartitionClasses | None = field(default=None, kw_only=True)

    def classes(self, part: Part, task: Task) -> Tensor:
        """Return the class (n,) by which partitions deal each example of a part; empty where there is no such part."""
        given = None if self.partition_classes is None else getattr(self.partition_classes, part)
        if given is not None:
            return torch.as_tensor(given)
        examples: Examples | None = getattr(self, part)
        return task.partition_label(examples.y) if examples is not None else torch.empty(0, dtype=torch.int64)

    def taken(self, train: Tensor, test: Tensor, validation: Tensor) -> ClientData:
        """Keep these rows of each part."""
        dealt = self.partition_classes
        if dealt is not None:
            of_validation = None if dealt.validation is None else dealt.validation[validation]
            dealt = PartitionClasses(dealt.train[train], dealt.test[test], of_validation)
        held = None if self.validation is None else _rows(self.validation, validation)
        return ClientData(_rows(self.train, train), _rows(self.test, test), held, partition_classes=dealt)


def _rows(examples: Examples, rows: Tensor) -> Examples:
    return Examples(examples.x[rows], examples.y[rows])


@dataclass(frozen=True)
class FederatedData:
    """All clients' examples; `new clients` are held out of the federation until it is done.

    `findings` say in words what is odd about the recordings that they come from. `partition_class_names` are the
    classes that partitions deal by, where they are others than those that are learnt. `moments` are what images are
    normalized by that are kept as bytes, batch by batch; None: examples are as networks take them. `fit` says how
    images of other sizes came to be of this one.
    """

    labels: tuple[str, ...]
    clients: Mapping[str, ClientData]
    statistics: Mapping[str, ChannelStatistics]  # what each client was normalized with
    split_leaks: bool
    new_clients: Mapping[str, ClientData] = field(default_factory=dict)
    new_statistics: Mapping[str, ChannelStatistics] = field(default_factory=dict)  # as `statistics`, of new clients
    findings: tuple[str, ...] = ()
    moments: Moments | None = None
    partition_class_names: tuple[str, ...] | None = None
    fit: Fit = "stretch"

    @property
    def partition_labels(self) -> tuple[str, ...]:
        """Names of the classes that partitions deal by."""
        return self.labels if self.partition_class_names is None else self.partition_class_names

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """Channels, height and width, where the examples are images."""
        clients = list(self.clients.values())
        return tuple(clients[0].train.x.shape[1:]) if self.moments is not None and clients else None

    @property
    def channels(self) -> ChannelScale | None:
        """What all clients' windows were normalized by; None where each client has its own, or nothing was."""
        found = {id(statistics): statistics for statistics in self.statistics.values()}
        return ChannelScale.of(only.mean, only.std) if len(found) == 1 and (only := found.popitem()[1]).count else None

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
        """Return every client's test examples, one client after the other in the order of `clients`; copied once."""
        return self._union

    @cached_property
    def _union(self) -> Examples:
        return joined([client.test for client in self.clients.values()])

    def sha256(self) -> str:
        """Return a digest of every client's examples as networks get them: who, which part, which numbers."""
        found = hashlib.sha256()
        for name, client in sorted({**self.clients, **self.new_clients}.items()):
            for part in ("train", "validation", "test"):
                examples: Examples | None = getattr(client, part)
                found.update(f"{name}/{part}/{0 if examples is None else len(examples.y)}\n".encode())
                for values in examples or ():
                    found.update(values.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()

    def per_class(self, task: Task) -> dict[str, Any]:
        """Count examples by client, part and the class that partitions deal by, for `clients.json`."""
        return {name: self._counts(client, task) for name, client in self.clients.items()}

    def _counts(self, client: ClientData, task: Task) -> dict[str, Any]:
        classes = (client.classes(part, task) for part in ("train", "test"))
        train, test = (torch.bincount(labels, minlength=len(self.partition_labels)).tolist() for labels in classes)
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
