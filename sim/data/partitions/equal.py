"""Equal shares: every client the same number of examples of every class, up to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sim.data.partitions.apportion import thinned
from sim.data.partitions.partition import Counts, LabelPartition, Sizes
from sim.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class Equal(LabelPartition):
    """Deal each class around the table, going on where the class before stopped.

    Any two clients differ by at most one example of a class, and by at most one in all. `examples` limits how many are
    dealt (None: all), in the proportions of the classes.
    """

    kind: ClassVar[str] = "equal"
    examples: int | None = None

    def counts(self, sizes: Sizes, seed: int) -> Counts:
        """Return (K, C); the seed decides only which examples a client gets, not how many."""
        sizes = thinned(sizes, self.examples)
        if sizes.sum() < self.clients:
            raise SettingsError(f"equal: {sizes.sum()} examples cannot be dealt to {self.clients} clients")
        cards = np.repeat(np.arange(len(sizes)), sizes)
        seats = np.arange(len(cards)) % self.clients
        table = np.bincount(seats * len(sizes) + cards, minlength=self.clients * len(sizes))
        return table.reshape(self.clients, len(sizes))
