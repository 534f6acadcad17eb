"""A few classes a client, and sizes by a power law.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020 (arXiv 1812.06127), MNIST in their code
(`data/mnist/generate_niid.py`); used by Michieli and Ozay 2021 with 1,000 clients of two digits, and of five letters.
Their 'power law' is log-normal: first `minimum` examples of each held class, then the rest of each class by weights
exp(σ·N(0, 1)).
Differs from their code: nothing is left over by rounding, and no client's lot is skipped for being large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from federation.seeds import generator
from sim.data.partitions.apportion import apportion, thinned
from sim.data.partitions.partition import Counts, LabelPartition, Sizes
from sim.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class Shards(LabelPartition):
    """Client k holds the classes k, k + 1, …, k + classes − 1 (mod C), and of each a share by its own weights.

    A client's weights are its own draws; that they are divided by their sum couples the sizes. `examples` limits how
    many are dealt (None: all), in the proportions of the classes.
    """

    kind: ClassVar[str] = "shards"
    test: Literal["published", "split"] = "split"
    clients: int = 1000
    classes: int = 2
    sigma: float = 2.0
    minimum: int = 5
    examples: int | None = None

    def __post_init__(self) -> None:
        """Refuse impossible shards; raises SettingsError."""
        super().__post_init__()
        for name in ("classes", "minimum"):
            if getattr(self, name) < 1:
                raise SettingsError(f"shards: {name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.sigma <= 10:
            raise SettingsError(f"shards: sigma is {self.sigma}; it must lie between 0 (equal sizes) and 10")

    def counts(self, sizes: Sizes, seed: int) -> Counts:
        """Return (K, C); each class is divided among its holders."""
        sizes = thinned(sizes, self.examples)
        weights = self._weights(len(sizes), seed)
        least = self.minimum * (weights > 0)
        short = np.flatnonzero(least.sum(axis=0) > sizes)
        if len(short):
            c = int(short[0])
            raise SettingsError(
                f"shards: {(weights[:, c] > 0).sum()} clients want {self.minimum} examples each of class {c}, there "
                f"are {sizes[c]}; take fewer clients or a smaller minimum"
            )
        rest = sizes - least.sum(axis=0)
        return least + np.stack([apportion(int(n), weights[:, c]) for c, n in enumerate(rest)], axis=1)

    def _weights(self, classes: int, seed: int) -> np.ndarray:
        if self.classes > classes:
            raise SettingsError(f"shards: {self.classes} classes a client, but the data have {classes}")
        weights = np.zeros((self.clients, classes))
        for k in range(self.clients):
            held = (k + np.arange(self.classes)) % classes
            weights[k, held] = np.exp(self.sigma * generator(seed, "shards", k).standard_normal(self.classes))
        return weights
