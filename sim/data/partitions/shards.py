"""Partitions in which each client has a few of the classes.

n-way k-shot: every client knows about n classes, with about k training examples of each.
Tan et al., "FedProto: federated prototype learning across heterogeneous clients", AAAI 2022 (arXiv 2105.00243),
'Local tasks': an average n and k for all, and noise on each client's n and k.
Differs from the paper: its text calls the noise a standard deviation, and so do we; the authors' code draws uniformly
from n ± stdev and k ± stdev, with n from 2 on.

A few classes a client, and sizes by a power law.
Li et al., "Federated optimization in heterogeneous networks", MLSys 2020 (arXiv 1812.06127), MNIST in their code
(`data/mnist/generate_niid.py`); used by Michieli and Ozay 2021 with 1,000 clients of two digits, and of five letters.
Their 'power law' is log-normal: first `minimum` examples of each held class, then the rest of each class by weights
exp(σ·N(0, 1)), σ = 2. One σ gives other spreads with each seed: 111 to 164 examples a client for their MNIST. With
`deviation` each seed has the σ that gives this spread.
Differs from their code: nothing is left over by rounding, and no client's lot is skipped for being large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from federation.seeds import generator
from sim.data.partitions.partition import Counts, LabelPartition, Sizes, apportion, thinned
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
            f"n_way: the clients need {counts[:, c].sum()} examples of class {c}, but there are {sizes[c]}; use fewer "
            f"clients or a smaller {option}"
        )


MAX_SIGMA = 10
BISECTIONS = 20


@dataclass(frozen=True, kw_only=True)
class Shards(LabelPartition):
    """Client k holds the classes k, k + 1, …, k + classes − 1 (mod C), and of each a share by its own weights.

    A client's weights are its own draws; that they are divided by their sum couples the sizes. `examples` limits how
    many are dealt (None: all), in the proportions of the classes. `deviation` is the standard deviation of examples a
    client, for which σ is sought (None: σ is `sigma`).
    """

    kind: ClassVar[str] = "shards"
    test: Literal["published", "split"] = "split"
    clients: int = 1000
    classes: int = 2
    sigma: float = 2.0
    minimum: int = 5
    examples: int | None = None
    deviation: float | None = None

    def __post_init__(self) -> None:
        """Refuse impossible shards; raises SettingsError."""
        super().__post_init__()
        for name in ("classes", "minimum"):
            if getattr(self, name) < 1:
                raise SettingsError(f"shards: {name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.sigma <= MAX_SIGMA:
            raise SettingsError(f"shards: sigma is {self.sigma}; it must lie between 0 (equal sizes) and {MAX_SIGMA}")

    def counts(self, sizes: Sizes, seed: int) -> Counts:
        """Return (K, C); each class is divided among its holders."""
        sizes = thinned(sizes, self.examples)
        draws = self._draws(len(sizes), seed)
        if self.deviation is None:
            return self._divided(sizes, draws, self.sigma)
        return self._divided(sizes, draws, self._sigma_for(self.deviation, sizes, draws))

    def _sigma_for(self, deviation: float, sizes: Sizes, draws: np.ndarray) -> float:
        """Find by bisection the σ whose sizes deviate so much."""
        low, high = 0.0, float(MAX_SIGMA)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            is_small = self._divided(sizes, draws, middle).sum(1).std() < deviation
            low, high = (middle, high) if is_small else (low, middle)
        found = float(self._divided(sizes, draws, high).sum(1).std())
        if abs(found - deviation) > 0.01 * deviation:
            raise SettingsError(
                f"shards: deviation is {deviation}; these sizes deviate by {found:.1f} at σ = {high:.2g}"
            )
        return high

    def _divided(self, sizes: Sizes, draws: np.ndarray, sigma: float) -> Counts:
        weights = np.nan_to_num(np.exp(sigma * draws))
        least = self.minimum * (weights > 0)
        short = np.flatnonzero(least.sum(axis=0) > sizes)
        if len(short):
            c = int(short[0])
            raise SettingsError(
                f"shards: {(weights[:, c] > 0).sum()} clients need {self.minimum} examples each of class {c}, but "
                f"there are {sizes[c]}; use fewer clients or a smaller minimum"
            )
        rest = sizes - least.sum(axis=0)
        return least + np.stack([apportion(int(n), weights[:, c]) for c, n in enumerate(rest)], axis=1)

    def _draws(self, classes: int, seed: int) -> np.ndarray:
        """Return N(0, 1) where client k holds class c, else NaN: (K, C)."""
        if self.classes > classes:
            raise SettingsError(f"shards: {self.classes} classes per client, but the data have {classes}")
        draws = np.full((self.clients, classes), np.nan)
        for k in range(self.clients):
            held = (k + np.arange(self.classes)) % classes
            draws[k, held] = generator(seed, "shards", k).standard_normal(self.classes)
        return draws
