"""New users: whole clients that are held out of the federation, and meet it when it is done."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from federation.seeds import generator
from federation.tasks.task import Task
from har_pipeline import WindowedDataset, leave_devices_out, leave_subjects_out
from sim.data.federated_data import FederatedData
from sim.errors import SettingsError
from sim.experiment.holdout import Holdout

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
        raise SettingsError(f"--holdout {fold}: there are {len(known)} to hold out; take 1/2 to 1/{len(known)}")
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
        raise SettingsError(f"{holdout.kind}: these data know no subjects or devices; use leave-clients-out")
    out: Sequence[str]
    match holdout.out:
        case int(count):
            out = _drawn(data, count, seed)
        case str(fold):
            out = one_fold(data.clients, fold, seed)
        case tuple(names):
            out = matching(data.clients, names)
    if strange := sorted(set(out) - data.clients.keys()):
        raise SettingsError(f"leave-clients-out: there is no client {strange[0]!r}")
    staying = {name: client for name, client in data.clients.items() if name not in out}
    if not staying:
        raise SettingsError("leave-clients-out: nobody is left to train; hold out fewer clients")
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
        raise SettingsError("--set holdout.known_classes: new clients have no class in common with those who train")
    return replace(data, new_clients=new_clients)


def _drawn(data: FederatedData, count: int, seed: int) -> list[str]:
    if not 0 < count < len(data.clients):
        raise SettingsError(f"cannot hold {count} of {len(data.clients)} clients out; leave at least one on each side")
    return sorted(data.clients, key=lambda name: generator(seed, "holdout", name).random())[:count]
