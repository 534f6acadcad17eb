"""Selects a run's clients and examples: held-out new clients, a smaller scale, few labels.

Few labels: a part of the clients have some labelled examples of each class, and nobody has more.
What has no label is not trained on by a task that needs one; it still belongs to the client, whose normalization is
that of all its training examples. Pretraining (the task `masked_reconstruction`) learns from all of them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np
import torch
from torch import Tensor

from federation.records import Examples
from federation.seeds import generator
from federation.tasks.classification import Classification
from federation.tasks.task import Task
from har_pipeline import WindowedDataset, leave_devices_out, leave_subjects_out
from sim.data.federated_data import ClientData, FederatedData, PartitionClasses
from sim.errors import SettingsError
from sim.experiment.options import Holdout

SHOTS = (0, 1, 2, 5, 10)
"""Labelled examples of each class that a new client personalizes with, its first in time; fewer where it has fewer."""

OTHERWISE_SHOTS = (0, 5)
"""The same of new clients with other phones (`sim.data.other_phones`)."""
CARRIED = {"upside_down": "upside down", "rotated": "rotated"}
"""The ways to carry them otherwise, and how tables call these."""
WORSE = {"slow": "25 Hz", "no_gyroscope": "no gyroscope", "clipped": "clipped", "noisy": "noisy"}
"""How their sensors are worse."""
OTHERWISE = {**CARRIED, **WORSE}


def leave_out(dataset: WindowedDataset, holdout: Holdout | None, seed: int) -> Sequence[str]:
    """Return the clients of recordings that take part, without those of the subjects or devices held out."""
    if holdout is None or holdout.kind == "leave-clients-out":
        return tuple(dataset.clients)
    by_subject, out = holdout.kind == "leave-subjects-out", holdout.out
    leave, known = (leave_subjects_out, dataset.subjects) if by_subject else (leave_devices_out, dataset.devices)
    match out:
        case str(fold):
            out = tuple(one_fold(known, fold, seed))
        case tuple(names):
            out = matching(known, names)
    return leave(dataset, out, seed=seed)[0]


def matching(known: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, and for one with `*` those of `known` that it stands for.

    Raises:
        SettingsError: if it stands for none.
    """
    every = sorted(known)
    found = [fnmatch.filter(every, name) if "*" in name else [name] for name in names]
    if nothing := [name for name, some in zip(names, found, strict=True) if not some]:
        raise SettingsError(f"--holdout: {nothing[0]!r} matches none of {', '.join(every[:12])}")
    return tuple(dict.fromkeys(name for some in found for name in some))


def one_fold(names: Iterable[str], fold: str, seed: int) -> list[str]:
    """Return the names of group `seed` mod K, where `fold` is 1/K; each name's place is its own draw.

    Raises:
        SettingsError: if there are fewer names than groups.
    """
    groups, known = int(fold.removeprefix("1/")), sorted(names)
    if not 1 < groups <= len(known):
        raise SettingsError(f"--holdout {fold}: there are {len(known)} to hold out; use 1/2 to 1/{len(known)}")
    drawn = sorted(known, key=lambda name: generator(0, "fold", name).random())
    return [str(name) for name in np.array_split(drawn, groups)[seed % groups]]


def leave_clients_out(data: FederatedData, holdout: Holdout | None, seed: int) -> FederatedData:
    """Hold out clients whatever they are; subjects and devices have been before, where the data know of them.

    Raises:
        SettingsError: for subjects or devices of data that have none, an unknown client, or if nobody is left.
    """
    if holdout is None or (holdout.kind != "leave-clients-out" and data.new_clients):
        return data
    if holdout.kind != "leave-clients-out":
        raise SettingsError(f"{holdout.kind}: these data have no subjects or devices; use leave-clients-out")
    out: Sequence[str]
    match holdout.out:
        case int(count):
            out = _drawn(data, count, seed)
        case str(fold):
            out = one_fold(data.clients, fold, seed)
        case tuple(names):
            out = matching(data.clients, names)
    if strange := sorted(set(out) - data.clients.keys()):
        raise SettingsError(f"leave-clients-out: unknown client {strange[0]!r}")
    staying = {name: client for name, client in data.clients.items() if name not in out}
    if not staying:
        raise SettingsError("leave-clients-out: no client is left to train; hold out fewer clients")
    new_clients = {name: data.clients[name] for name in sorted(out)}
    known = data.statistics
    staying_statistics = {name: known[name] for name in staying}
    new_statistics = {name: known[name] for name in new_clients}
    found = replace(data, clients=staying, statistics=staying_statistics)
    return replace(found, new_clients=new_clients, new_statistics=new_statistics)


def keep_known_classes(data: FederatedData, holdout: Holdout | None, task: Task) -> FederatedData:
    """Take from new clients, where the holdout says so, what nobody who trains has a training example of.

    Raises:
        SettingsError: if new clients have nothing else.
    """
    if holdout is None or not holdout.known_classes:
        return data
    known = torch.cat([client.classes("train", task) for client in data.clients.values()])
    new_clients = {}
    for name, client in data.new_clients.items():
        train, test, validation = (
            torch.isin(client.classes(part, task), known).nonzero().flatten()
            for part in ("train", "test", "validation")
        )
        if len(test):
            new_clients[name] = client.taken(train, test, validation)
    if not new_clients:
        raise SettingsError(
            "--set holdout.known_classes: new clients have no class in common with the training clients"
        )
    return replace(data, new_clients=new_clients)


def _drawn(data: FederatedData, count: int, seed: int) -> list[str]:
    if not 0 < count < len(data.clients):
        raise SettingsError(f"cannot hold out {count} of {len(data.clients)} clients; leave at least one on each side")
    return sorted(data.clients, key=lambda name: generator(seed, "holdout", name).random())[:count]


MIN_CLIENTS = 2
BY_CLASS = Classification()


def scaled(data: FederatedData, scale: float, seed: int, task: Task = BY_CLASS) -> FederatedData:
    """Keep ⌈S · K⌉ clients (at least two), drawn by the seed, and ⌈S · n⌉ examples of each part and class.

    The class is that which partitions deal by. Examples are taken at even distances, so that what is left is spread
    over time as it was.
    """
    if scale == 1:
        return data
    clients, new_clients = (_fewer(some, scale, seed, task) for some in (data.clients, data.new_clients))
    return replace(data, clients=clients, new_clients=new_clients, statistics={n: data.statistics[n] for n in clients})


def scaled_rounds(rounds: int, scale: float) -> int:
    """Return ⌈S · rounds⌉, one at least."""
    return max(1, ceil(scale * rounds))


def _fewer(clients: Mapping[str, ClientData], scale: float, seed: int, task: Task) -> dict[str, ClientData]:
    drawn = sorted(clients, key=lambda name: generator(seed, "scale", name).random())
    kept = sorted(drawn[: max(MIN_CLIENTS, ceil(scale * len(clients)))])
    return {name: _less(clients[name], scale, task) for name in kept}


def _less(client: ClientData, scale: float, task: Task) -> ClientData:
    train, test, validation = (_thinned(client.classes(part, task), scale) for part in ("train", "test", "validation"))
    return client.taken(train, test, validation)


def _thinned(classes: Tensor, scale: float) -> Tensor:
    """Return which examples of these classes (n,) stay."""
    kept = []
    for label in sorted(set(classes.tolist())):
        members = (classes == label).nonzero().flatten()
        kept.append(members[_spaced(len(members), ceil(scale * len(members)))])
    return torch.cat(kept).sort().values if kept else classes


def _spaced(count: int, wanted: int) -> list[int]:
    """Return at most `wanted` of 0 … count − 1, at even distances from the first on."""
    return [k * count // wanted for k in range(wanted)] if wanted < count else list(range(count))


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
            f"--labelled-per-class and --labelled-clients are for tasks that learn from labels; {task.name} uses none "
            f"and learns from every example"
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
