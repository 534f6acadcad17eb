"""Stores for client models between rounds: in memory, in a memory-mapped file, or nowhere."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, overload

import psutil
import torch
from torch import Tensor

from federation.records import Broadcast, Client, Tree
from federation.records.tree import flatten, map_tree
from federation.training.forward import NOISE_STATE
from federation.training.local_round import LocalRound, Setup
from sim.engines.shared_memory import Layout, MmapArena, Packing, Slot, read
from sim.errors import SettingsError
from sim.experiment.networks import Architecture
from sim.experiment.options import ClientStoreKind

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


class NullStore:
    """Lets a client go with its round: memory grows with the cohort, not with the federation."""

    def put(self, result: LocalRound) -> tuple[None, Result]:
        """Return only what the round needs."""
        return None, result


def remembered(setup: Setup, client: Client, broadcast: Broadcast) -> str | None:
    """Name what the next round would miss of a client; None where the server sends everything anew.

    A tensor counts as sent only if `receive` hands on the broadcast's very own: one that is computed may have the
    client's in it. Dropout's counters are set in each round.
    """
    # at first a client and the server may have the same tensors
    client = Client(*(map_tree(torch.clone, part) for part in client))
    received, round_state = setup.method.receive(client, broadcast)
    sent = {id(value) for value in flatten(broadcast).values()}
    parts = {
        "memory": client.memory,
        "parameter": received.params,
        "buffer": received.buffers,
        "former": round_state,
    }
    for part, tree in parts.items():
        for name, value in flatten(tree).items():
            if id(value) not in sent and not name.endswith(NOISE_STATE):
                return f"{part} {name}"
    return None


def check_forgetting(networks: Sequence[Architecture], broadcast: Broadcast, precision: str) -> None:
    """Refuse to forget clients that the next round would miss.

    Raises:
        SettingsError: saying what of them it would miss.
    """
    method = networks[0].setup.method
    if not method.has_global_model:
        raise SettingsError(
            f"--client-store none: {method.name} has no server model, so nothing would be left to score; "
            "use --client-store auto, memory or disk"
        )
    needed = "its residual" if precision == "int8" else None
    for network in networks:
        needed = needed or remembered(network.setup, network.initial, broadcast)
    if needed:
        raise SettingsError(
            f"--client-store none: with {method.name} and {precision} uploads a client needs its earlier state "
            f"({needed}); use --client-store auto, memory or disk"
        )


class DiskStore:
    """Lays client, upload and loss into one slot, where a tensor that two of them hold lies once.

    So an upload of tensors of its own takes disk as long as its client is kept.
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.arena, self.device = MmapArena(folder), device
        self._layouts: dict[str, Layout] = {}  # clients with one network have one

    def put(self, result: LocalRound) -> tuple[StoredClient, Result]:
        """Write the result.

        Raises:
            ClientStoreError: if the disk is full.
        """
        tree = {"client": result.client._asdict(), "upload": result.upload, "loss": result.loss}
        slot, layout = self.arena.write_tree(tree)
        laid = _ClientOnDisk(slot, self._layouts.setdefault(json.dumps(layout), layout), self.device)
        return (lambda: laid.client), laid


class _ClientOnDisk:
    """A result on the disk."""

    __slots__ = ("_device", "_layout", "_slot")

    def __init__(self, slot: Slot, layout: Layout, device: str) -> None:
        self._slot, self._layout, self._device = slot, layout, device

    @property
    def client(self) -> Client:
        """The client's model and memory, as views."""
        return Client(**self._read("client"))

    @property
    def upload(self) -> Tree:
        """What travels, as views."""
        upload: Tree = self._read("upload")
        return upload

    @property
    def loss(self) -> Tensor:
        """The last epoch's mean loss."""
        loss: Tensor = self._read("loss")
        return loss

    def _read(self, part: str) -> Any:
        found = read(self._layout[part], self._slot.memory)
        return found if self._device == "cpu" else map_tree(lambda value: value.to(self._device), found)


S = TypeVar("S")
T = TypeVar("T")


class LazyMapping(Mapping[str, T]):
    """A value for each name; made anew every time."""

    def __init__(self, names: Iterable[str], make: Callable[[str], T]) -> None:
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class LazySequence(Sequence[T], Generic[S, T]):
    """A value for each of some others, in their order; made anew every time."""

    def __init__(self, others: Sequence[S], make: Callable[[S], T]) -> None:
        self._others, self._make = others, make

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> LazySequence[S, T]: ...
    def __getitem__(self, index: int | slice) -> T | LazySequence[S, T]:
        if isinstance(index, slice):
            return LazySequence(self._others[index], self._make)
        return self._make(self._others[index])

    def __len__(self) -> int:
        return len(self._others)


SHARE = 0.5
"""Of the free memory that models may fill: training, scoring and other programs need some, and it is an estimate."""

CGROUP = Path("/sys/fs/cgroup")
"""Version 2's, as a container sees its own."""


class StoreChoice(NamedTuple):
    """A store, its name, and why it was chosen."""

    store: ClientStore
    name: str
    reason: str


class StoreDemand(NamedTuple):
    """What all models' bytes follow from; `client_bytes` are those of one client that has not trained yet.

    `chosen` is how many ways there are to choose a round whose models are kept beside the present ones.
    """

    clients: int
    cohort: int
    rounds: int
    client_bytes: int
    chosen: int = 1

    @property
    def peak_bytes(self) -> int:
        """Present and chosen rounds' models of who will have trained, and a round's uploads as large as they."""
        trained = min(self.clients, self.cohort * self.rounds)
        return self.client_bytes * (trained * min(1 + self.chosen, self.rounds) + self.cohort)


def client_bytes(client: Client) -> int:
    """Return the bytes of a client's model and memory."""
    return Packing(client._asdict()).size


def choose(where: ClientStoreKind, device: str, federation: StoreDemand, folder: Path) -> StoreChoice:
    """Return what is asked for, or for `auto` the disk if the models would not fit into memory.

    Raises:
        ClientStoreError: if the folder cannot hold them.
    """
    if where == "none":
        return StoreChoice(NullStore(), "none", "as asked; a client's model ends with its round")
    if where == "memory" or not hasattr(os, "pwrite"):
        return StoreChoice(MemoryStore(), "memory", "as asked" if where == "memory" else "this system cannot map files")
    if where == "disk":
        return StoreChoice(DiskStore(folder, device), "disk", f"as asked, in {folder}")
    needed, free = federation.peak_bytes, free_memory(device)
    why = f"at most {needed / 1e9:,.1f} GB of models, {free / 1e9:,.1f} GB of memory are free"
    if needed <= SHARE * free:
        return StoreChoice(MemoryStore(), "memory", why)
    return StoreChoice(DiskStore(folder, device), "disk", f"{why}: in {folder}")


def free_memory(device: str) -> int:
    """Return free bytes of a GPU, or of this machine within the container's limit."""
    if torch.device(device).type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return min(int(psutil.virtual_memory().available), _container())


def _container() -> int:
    limit = _text(CGROUP / "memory.max")
    if not limit.isdigit():  # there is none, or "max"
        return sys.maxsize
    usage = dict(line.split() for line in _text(CGROUP / "memory.stat").splitlines())
    return max(0, int(limit) - int(usage.get("anon", 0)))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
