"""Partitions that skew nothing: the clients that the data come with, or equal shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from federation.seeds import generator
from sim.data.partitions.partition import Counts, Indices, LabelPartition, Partition, Pool, Share, Sizes, thinned
from sim.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class Natural(Partition):
    """Give every example to the client that it belongs to.

    `minimum`: who has fewer examples (5 in LEAF), or none to train on, is left out. `clients`: so many of the rest,
    drawn by the seed (None: all). test="split": a random `test_share` of each client's examples, by its own stream.
    """

    kind: ClassVar[str] = "natural"
    test: Literal["published", "split"] = "split"
    clients: int | None = None
    minimum: int = 1

    def divide(self, pool: Pool, seed: int) -> dict[str, Share]:
        """Return {natural name: its examples} in the order of the names; see `Partition.divide`."""
        self.require_test_part(pool)
        owned = _owned(pool)
        shares = {name: self._share(name, members, pool, seed) for name, members in owned.items()}
        large = {k: s for k, s in shares.items() if len(s.train) and len(s.train) + len(s.test) >= self.minimum}
        if not large:
            most = max(len(members) for members in owned.values())
            raise SettingsError(f"natural: no client has {self.minimum} examples and one to train on; most is {most}")
        return {name: large[name] for name in self._chosen(tuple(large), seed)}

    def _share(self, name: str, members: Indices, pool: Pool, seed: int) -> Share:
        if self.test == "published":
            train = pool.train[members]
            return Share(members[train], members[~train])
        least = min(1, len(members) - 1) if self.test_share else 0
        tested = max(round(self.test_share * len(members)), least)
        order = generator(seed, "natural", name).permutation(members)
        return Share(np.sort(order[tested:]), np.sort(order[:tested]))

    def _chosen(self, names: tuple[str, ...], seed: int) -> list[str]:
        if self.clients is None:
            return list(names)
        if not 1 <= self.clients <= len(names):
            raise SettingsError(f"natural: clients is {self.clients}; the data have {len(names)}")
        return sorted(generator(seed, "natural").permutation(np.array(names))[: self.clients].tolist())


def _owned(pool: Pool) -> dict[str, Indices]:
    """Positions of each client's examples, ascending; SettingsError where the data name no clients."""
    if pool.client is None:
        raise SettingsError("natural: these data do not say whom an example belongs to; take another partition")
    names, codes = np.unique(pool.client, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    edges = np.cumsum(np.bincount(codes, minlength=len(names)))[:-1]
    return dict(zip(names.tolist(), np.split(order, edges), strict=True))


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
