"""`--scale S`: a run made small for a smoke test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

import torch
from torch import Tensor

from federation.seeds import generator
from federation.tasks.classification import Classification
from federation.tasks.task import Task
from sim.data.federated_data import ClientData, FederatedData

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
