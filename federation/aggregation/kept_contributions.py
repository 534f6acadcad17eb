"""What each client has in the sums of a continuous method, kept beside its state by whoever drives it without rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from federation.records import Tree, Update
from federation.records.tree import map_tree


@dataclass
class KeptContributions:
    """The clients' trees by name: those of the simulation, and of the methods' tests."""

    trees: dict[str, Tree] = field(default_factory=dict)

    def replacing(self, update: Update) -> Update:
        """Return the update with what it replaces."""
        return update._replace(replaces=self.trees.get(update.client_id))

    def withdrawal(self, client_id: str) -> Update:
        """Return what takes a client's part out.

        Raises:
            KeyError: if it has none.
        """
        return Update(client_id, 0, 0, {}, replaces=self.trees[client_id])

    def note(self, updates: Iterable[Update]) -> None:
        """Note the updates that a version was made with; their tensors may lie in memory that is used again."""
        for update in updates:
            if update.tensors:
                self.trees[update.client_id] = map_tree(torch.clone, update.tensors)
            else:
                self.trees.pop(update.client_id, None)
