"""`--scale S`: a run made small for a smoke test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

import torch

from federation.records import Examples
from federation.seeds import generator
from sim.data.federated_data import ClientData, FederatedData

FEWEST = 2


def scaled(data: FederatedData, scale: float, seed: int) -> FederatedData:
    """Keep ⌈S · K⌉ clients (at least two), drawn by the seed, and ⌈S · n⌉ examples of each part and class.

    Examples are taken at even distances, so that what is left is spread over time as it was.
    """
    if scale == 1:
        return data
    clients, new_clients = (_fewer(some, scale, seed) for some in (data.clients, data.new_clients))
    return replace(data, clients=clients, new_clients=new_clients, statistics={n: data.statistics[n] for n in clients})


def scaled_rounds(rounds: int, scale: float) -> int:
    """Return ⌈S · rounds⌉, one at least."""
    return max(1, ceil(scale * rounds))


def _fewer(clients: Mapping[str, ClientData], scale: float, seed: int) -> dict[str, ClientData]:
    drawn = sorted(clients, key=lambda name: generator(seed, "scale", name).random())
    kept = sorted(drawn[: max(FEWEST, ceil(scale * len(clients)))])
    return {name: _less(clients[name], scale) for name in kept}


def _less(client: ClientData, scale: float) -> ClientData:
    validation = None if client.validation is None else _thinned(client.validation, scale)
    return ClientData(_thinned(client.train, scale), _thinned(client.test, scale), validation)


def _thinned(examples: Examples, scale: float) -> Examples:
    kept = []
    for label in sorted(set(examples.y.tolist())):
        members = (examples.y == label).nonzero().flatten()
        kept.append(members[_spaced(len(members), ceil(scale * len(members)))])
    rows = torch.cat(kept).sort().values if kept else examples.y
    return Examples(examples.x[rows], examples.y[rows])


def _spaced(count: int, wanted: int) -> list[int]:
    """Return at most `wanted` of 0 … count − 1, at even distances from the first on."""
    return [k * count // wanted for k in range(wanted)] if wanted < count else list(range(count))
