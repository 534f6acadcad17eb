"""Where a run's clients are kept, and why: their models' bytes against the memory that is free."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from federation.records import Client
from sim.engines.client_store.disk import DiskStore
from sim.engines.client_store.memory import ClientStore, MemoryStore
from sim.engines.client_store.null import NullStore
from sim.engines.memory.shared_memory import Packing
from sim.experiment.options import ClientStoreKind

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
