"""Keeps the clients' models on the disk: memory holds a slot's number for each, and views while they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from federation.records import Client, Tree
from federation.records.tree import map_tree
from federation.training.local_round import LocalRound
from sim.engines.client_store.memory import Result, StoredClient
from sim.engines.memory.mmap_arena import MmapArena, Slot
from sim.engines.memory.shared_memory import Layout, read


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
