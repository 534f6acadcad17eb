"""What a simulation keeps of every client that has trained, wherever the tensors lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from torch import Tensor

from federation.records import Client, Tree
from federation.training.local_round import LocalRound

StoredClient = Callable[[], Client]
"""Returns a client; its tensors may be views that are made then."""


class Result(Protocol):
    """A client's round, of which `LocalRound` is the plain one; needed until the round is over."""

    @property
    def client(self) -> Client:
        """The client's model and memory."""
        ...

    @property
    def upload(self) -> Tree:
        """What travels."""
        ...

    @property
    def loss(self) -> Tensor:
        """The last epoch's mean loss: ()."""
        ...


class ClientStore(Protocol):
    """Puts results where they stay; a place is free again once nobody refers to what lies there."""

    def put(self, result: LocalRound) -> tuple[StoredClient | None, Result]:
        """Return what stays of the client, if anything does, and what the round needs of the result."""
        ...


class MemoryStore:
    """Leaves tensors where they are."""

    def put(self, result: LocalRound) -> tuple[StoredClient, Result]:
        """Return the client without its upload, which ends with the round, and the result."""
        client = result.client
        return (lambda: client), result


class Clients(Mapping[str, Client]):
    """Clients by name; `stored` are the places, which two of these may share."""

    def __init__(self, stored: Mapping[str, StoredClient] | None = None) -> None:
        self.stored: dict[str, StoredClient] = dict(stored or {})

    def __getitem__(self, name: str) -> Client:
        return self.stored[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def with_view(self, view: Callable[[str, Client], Client]) -> Clients:
        """Return the same clients, each as `view` makes it of its name and what is kept, when it is asked for."""

        def seen(name: str, stored: StoredClient) -> StoredClient:
            return lambda: view(name, stored())

        return Clients({name: seen(name, stored) for name, stored in self.stored.items()})


def shared(client_sets: Mapping[str, Clients]) -> dict[str, dict[str, str]]:
    """Say of every client set which clients lie in the same place as on an earlier one, and on which."""
    found: dict[str, dict[str, str]] = {}
    for client_set, clients in client_sets.items():
        found[client_set] = {
            name: other
            for other in reversed(found)  # so that the earliest is what stays
            for name, stored in clients.stored.items()
            if client_sets[other].stored.get(name) is stored
        }
    return found
