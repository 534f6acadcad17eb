"""n-way k-shot: every client knows about n classes, with about k training examples of each.

Tan et al., "FedProto: federated prototype learning across heterogeneous clients", AAAI 2022 (arXiv 2105.00243),
'Local tasks': an average n and k for all, and noise on each client's n and k.
Differs from the paper: its text calls the noise a standard deviation, and so do we; the authors' code draws uniformly
from n ± stdev and k ± stdev, with n from 2 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from federation.seeds import generator
from sim.data.partitions.partition import Counts, LabelPartition, Sizes
from sim.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class NWay(LabelPartition):
    """Draw each client's n ~ N(ways, stdev), rounded and clipped to [1, C], its classes, and k ~ N(shots, shots_stdev).

    Each client's draws are its own: adding one changes no other's. A client is tested on `test_shots` examples of each
    of its classes (40 in the authors' code), from the published test part or, with test="split", dealt with the rest.
    """

    kind: ClassVar[str] = "n_way"
    ways: float = 3.0
    stdev: float = 2.0
    shots: int = 100
    shots_stdev: float = 2.0
    test_shots: int = 40

    def __post_init__(self) -> None:
        """Refuse a task without classes or examples; raises SettingsError."""
        super().__post_init__()
        for name in ("ways", "shots", "test_shots"):
            if getattr(self, name) < 1:
                raise SettingsError(f"n_way: {name} is {getattr(self, name)}; it must be at least 1")
        for name in ("stdev", "shots_stdev"):
            if getattr(self, name) < 0:
                raise SettingsError(f"n_way: {name} is {getattr(self, name)}; it must not be negative")

    def counts(self, sizes: Sizes, seed: int) -> Counts:
        """Return (K, C): with test="split" the test shots are counted too."""
        rows = np.stack([self._row(k, len(sizes), seed) for k in range(self.clients)])
        together = rows + (rows > 0) * (self.test_shots if self.test == "split" else 0)
        _require(together, sizes, "shots")
        return together

    def _row(self, client: int, classes: int, seed: int) -> Sizes:
        random = generator(seed, "n_way", client)
        ways = int(np.clip(np.rint(random.normal(self.ways, self.stdev)), 1, classes))
        shots = max(1, int(np.rint(random.normal(self.shots, self.shots_stdev))))
        row = np.zeros(classes, dtype=np.int64)
        row[random.choice(classes, ways, replace=False)] = shots
        return row

    def test_counts(self, train: Counts, sizes: Sizes) -> Counts:
        """Return `test_shots` of each class that a client trains on."""
        counts = (train > 0) * np.int64(self.test_shots)
        _require(counts, sizes, "test_shots")
        return counts

    def held_out(self, counts: Counts) -> Counts:
        """Return the test shots that `counts` includes."""
        return (counts > 0) * np.int64(self.test_shots)


def _require(counts: Counts, sizes: Sizes, option: str) -> None:
    short = np.flatnonzero(counts.sum(axis=0) > sizes)
    if len(short):
        c = int(short[0])
        raise SettingsError(
            f"n_way: the clients want {counts[:, c].sum()} examples of class {c}, there are {sizes[c]}; "
            f"take fewer clients or a smaller {option}"
        )
