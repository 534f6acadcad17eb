"""What a simulation keeps of every client that has trained, wherever the tensors lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from torch import Tensor

from federation.records import Client, Tree
from federation.training.local_round import LocalRound


class Kept(Protocol):
    """A client; its tensors may be views that are made when they are asked for."""

    @property
    def client(self) -> Client:
        """The client's model and memory."""
        ...


class Result(Kept, Protocol):
    """A client's round, of which `LocalRound` is the plain one; needed until the round is over."""

    @property
    def upload(self) -> Tree:
        """What travels."""
        ...

    @property
    def loss(self) -> Tensor:
        """The last epoch's mean loss: ()."""
        ...


class Keeper(Protocol):
    """Puts results where they stay; a place is free again once nobody refers to what lies there."""

    def keep(self, result: LocalRound) -> tuple[Kept | None, Result]:
        """Return what stays of the client, if anything does, and what the round needs of the result."""
        ...


class InMemory:
    """Leaves tensors where they are."""

    def keep(self, result: LocalRound) -> tuple[Kept, Result]:
        """Return the client without its upload, which ends with the round, and the result."""
        return _Held(result.client), result


class _Held(NamedTuple):
    client: Client


class _Seen:
    """A client as a view makes it."""

    __slots__ = ("_kept", "_name", "_view")

    def __init__(self, name: str, kept: Kept, view: Callable[[str, Client], Client]) -> None:
        self._name, self._kept, self._view = name, kept, view

    @property
    def client(self) -> Client:
        """The view."""
        return self._view(self._name, self._kept.client)


class Clients(Mapping[str, Client]):
    """Clients by name; `kept` are the places, which two of these may share."""

    def __init__(self, kept: Mapping[str, Kept] | None = None) -> None:
        self.kept: dict[str, Kept] = dict(kept or {})

    def __getitem__(self, name: str) -> Client:
        return self.kept[name].client

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)

    def seen_as(self, view: Callable[[str, Client], Client]) -> Clients:
        """Return the same clients, each as `view` makes it of its name and what is kept, when it is asked for."""
        return Clients({name: _Seen(name, kept, view) for name, kept in self.kept.items()})


def shared(shelves: Mapping[str, Clients]) -> dict[str, dict[str, str]]:
    """Say of every shelf which clients lie in the same place as on an earlier one, and on which."""
    found: dict[str, dict[str, str]] = {}
    for shelf, clients in shelves.items():
        found[shelf] = {
            name: other
            for other in reversed(found)  # so that the earliest is what stays
            for name, kept in clients.kept.items()
            if shelves[other].kept.get(name) is kept
        }
    return found
