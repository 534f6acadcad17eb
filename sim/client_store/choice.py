"""Where a run's clients are kept, and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from federation.records import Client
from sim.client_store.disk import DiskStore
from sim.client_store.memory import ClientStore, MemoryStore
from sim.client_store.null import NullStore
from sim.experiment import ClientStoreKind
from sim.memory.free_memory import free_memory
from sim.memory.shared_memory import lay_out

SHARE = 0.5
"""Of the free memory that models may fill: training, scoring and other programs need some, and it is an estimate."""


class Choice(NamedTuple):
    """A store, its name, and why it was chosen."""

    store: ClientStore
    name: str
    reason: str


class Federation(NamedTuple):
    """What all models' bytes follow from; `each` are those of one client that has not trained yet.

    `chosen` is how many ways there are to choose a round whose models are kept beside the present ones.
    """

    clients: int
    cohort: int
    rounds: int
    each: int
    chosen: int = 1

    @property
    def most_bytes(self) -> int:
        """Present and chosen rounds' models of who will have trained, and a round's uploads as large as they."""
        trained = min(self.clients, self.cohort * self.rounds)
        return self.each * (trained * min(1 + self.chosen, self.rounds) + self.cohort)


def client_bytes(client: Client) -> int:
    """Return the bytes of a client's model and memory."""
    return lay_out(client._asdict()).size


def choose(where: ClientStoreKind, device: str, federation: Federation, folder: Path) -> Choice:
    """Return what is asked for, or for `auto` the disk if the models would not fit into memory.

    Raises:
        ClientStoreError: if the folder cannot hold them.
    """
    if where == "none":
        return Choice(NullStore(), "none", "as asked; a client's model ends with its round")
    if where == "memory" or not hasattr(os, "pwrite"):
        return Choice(MemoryStore(), "memory", "as asked" if where == "memory" else "this system cannot map files")
    if where == "disk":
        return Choice(DiskStore(folder, device), "disk", f"as asked, in {folder}")
    needed, free = federation.most_bytes, free_memory(device)
    why = f"at most {needed / 1e9:,.1f} GB of models, {free / 1e9:,.1f} GB of memory are free"
    if needed <= SHARE * free:
        return Choice(MemoryStore(), "memory", why)
    return Choice(DiskStore(folder, device), "disk", f"{why}: in {folder}")
