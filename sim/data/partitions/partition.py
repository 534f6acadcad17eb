"""The base of partitions: a matrix of counts, clients × classes, filled from a seeded order of examples.

Every partition by label decides only how many examples of each class a client gets; which ones is decided by one
shuffled order for each class, from which the clients take their runs one after another. So no example is given twice,
and a client that is added at the end changes no other's examples as long as it changes no other's counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from federation.seeds import generator
from sim.errors import SettingsError

Whole = npt.NDArray[np.int64]


def apportion(total: int, weights: npt.ArrayLike, at_least: int = 0) -> Whole:
    """Divide `total` in proportion to weights (n,) ≥ 0 into whole numbers (n,) that sum to it.

    Each differs from its exact quota by less than one; equal remainders are served from the front. Where all weights
    vanish nothing is divided. Every positive weight first gets `at_least`, if that many there are.
    """
    shares = np.asarray(weights, dtype=np.float64)
    holders = shares > 0
    if not holders.any():
        return np.zeros(len(shares), dtype=np.int64)
    floor = at_least * holders.astype(np.int64) * (at_least * int(holders.sum()) <= total)
    quota = (total - int(floor.sum())) * (shares / shares.sum())
    whole = np.floor(quota).astype(np.int64)
    missing = total - int(floor.sum()) - int(whole.sum())
    # only holders are served: rounding must not hand anything to a weight of zero
    remainder = np.where(holders, quota - whole, -1.0)
    whole[np.argsort(-remainder, kind="stable")[:missing]] += 1
    return np.asarray(whole + floor, dtype=np.int64)


def thinned(sizes: Whole, examples: int | None) -> Whole:
    """Lessen class sizes (C,) to `examples` in all, in their proportions; None leaves them."""
    return sizes if examples is None or examples >= sizes.sum() else apportion(examples, sizes)


Indices = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]  # (K, C) examples of each client and class
Sizes = npt.NDArray[np.int64]  # (C,) examples of each class


class Pool(NamedTuple):
    """What is handed out: y (n,) int64 class of each example, train (n,) bool its published part.

    `client` (n,) names whom each example belongs to by nature, where that is known.
    """

    y: Indices
    classes: int
    train: npt.NDArray[np.bool_]
    client: npt.NDArray[np.str_] | None = None

    def sizes(self, part: npt.NDArray[np.bool_] | None = None) -> Sizes:
        """Count the examples of each class (C,), of one part or of all."""
        return np.bincount(self.y if part is None else self.y[part], minlength=self.classes)


NONE: Indices = np.empty(0, dtype=np.int64)


class Share(NamedTuple):
    """What one client got: ascending positions in the pool, train (a,), test (b,) and validation (c,), disjoint."""

    train: Indices
    test: Indices
    validation: Indices = NONE


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """How examples are divided among clients.

    `test` says where a client's test set is from. "published": training examples are dealt from the published training
    part, test examples from the published test part in the proportions of the client's training classes. "split": the
    parts are laid together, and of what a client gets the share `test_share` is its test set, in the same proportions;
    with a share of 0 it has none.
    """

    kind: ClassVar[str]
    test: Literal["published", "split"] = "published"
    test_share: float = 0.2

    def __post_init__(self) -> None:
        """Refuse what no partition can do; raises SettingsError."""
        if not 0 <= self.test_share < 1:
            raise SettingsError(f"{self.kind}: test_share is {self.test_share}; expected 0 (none) or more, and below 1")

    @abstractmethod
    def divide(self, pool: Pool, seed: int) -> dict[str, Share]:
        """Return {client: its examples}, every client with at least one training example.

        Raises:
            SettingsError: if the pool cannot be divided so.
        """

    def require_test_part(self, pool: Pool) -> None:
        """Refuse `test="published"` where nothing was published as test; raises SettingsError."""
        if self.test == "published" and pool.train.all():
            raise SettingsError(f'{self.kind}: these data have no published test part; set test="split"')


@dataclass(frozen=True, kw_only=True)
class LabelPartition(Partition):
    """A partition into `clients` clients that is decided by labels alone: by its matrix of counts."""

    clients: int = 20

    def __post_init__(self) -> None:
        """Refuse a federation of nobody; raises SettingsError."""
        super().__post_init__()
        if self.clients < 1:
            raise SettingsError(f"{self.kind}: clients is {self.clients}; at least 1 is needed")

    @abstractmethod
    def counts(self, sizes: Sizes, seed: int) -> Counts:
        """Return how many examples of each class (K, C) go to each client, of `sizes` (C,) that there are.

        Raises:
            SettingsError: if there are too few.
        """

    def test_counts(self, train: Counts, sizes: Sizes) -> Counts:
        """Return how many published test examples (K, C) belong to training counts: all, in proportion.

        Every client that trains on a class is tested on it as long as there is an example for each.
        """
        columns = [apportion(int(size), train[:, c], at_least=1) for c, size in enumerate(sizes)]
        return np.stack(columns, axis=1)

    def held_out(self, counts: Counts) -> Counts:
        """Return how many of each client's examples (K, C) are its test set: `test_share`, with two or more one."""
        if not self.test_share:
            return np.zeros_like(counts)
        totals = counts.sum(axis=1)
        tested = np.clip(np.rint(self.test_share * totals).astype(np.int64), np.minimum(totals - 1, 1), totals - 1)
        return np.stack([apportion(int(total), row) for total, row in zip(tested, counts, strict=True)])

    def divide(self, pool: Pool, seed: int) -> dict[str, Share]:
        """Assign every class's examples by the matrix of counts; see `Partition.divide`."""
        self.require_test_part(pool)
        if self.test == "published":
            train = self.counts(pool.sizes(pool.train), seed)
            test = self.test_counts(train, pool.sizes(~pool.train))
            trained = assign_by_counts(shuffle_by_class(pool, pool.train, seed, "train"), train)
            tested = assign_by_counts(shuffle_by_class(pool, ~pool.train, seed, "test"), test)
            return name_clients(list(map(Share, trained, tested)))
        both = self.counts(pool.sizes(), seed)
        test = self.held_out(both)
        everything = shuffle_by_class(pool, np.ones_like(pool.train), seed, "all")
        # each cell's run of its class is cut in two, so that a client keeps its examples whatever its share
        cut = assign_by_counts(everything, np.stack([both - test, test], axis=1).reshape(-1, pool.classes))
        return name_clients(list(map(Share, cut[::2], cut[1::2])))


def shuffle_by_class(pool: Pool, part: npt.NDArray[np.bool_], seed: int, name: str) -> list[Indices]:
    """Shuffle the positions of each class's examples of one part, each class by its own stream."""
    members = (np.flatnonzero(part & (pool.y == c)) for c in range(pool.classes))
    return [generator(seed, "deck", name, c).permutation(deck) for c, deck in enumerate(members)]


def assign_by_counts(shuffled: list[Indices], counts: Counts) -> list[Indices]:
    """Take from each class's shuffled members the runs that counts (H, C) ask for; return H ascending arrays."""
    ends, assigned = counts.cumsum(axis=0), []
    for low, high in zip(ends - counts, ends, strict=True):
        runs = [deck[first:last] for deck, first, last in zip(shuffled, low, high, strict=True)]
        assigned.append(np.sort(np.concatenate(runs)))
    return assigned


def with_validation(shares: Mapping[str, Share], y: Indices, share: float) -> dict[str, Share]:
    """Cut a tail off every client's training examples: of each class the last round(share · n), in their order."""
    cut = {name: tail(y[given.train], share) for name, given in shares.items()}
    return {name: Share(given.train[~cut[name]], given.test, given.train[cut[name]]) for name, given in shares.items()}


def tail(y: Indices, share: float) -> npt.NDArray[np.bool_]:
    """Mark the last round(share · n) of the n examples of each class in y (n,)."""
    marked = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        marked[members[len(members) - round(share * len(members)) :]] = True
    return marked


def name_clients(shares: list[Share]) -> dict[str, Share]:
    """Name clients by number, padded with zeros to three digits or more: `client-007`."""
    width = max(3, len(str(len(shares) - 1)))
    return {f"client-{k:0{width}d}": share for k, share in enumerate(shares)}


def class_counts(shares: Mapping[str, Share], y: Indices, classes: int, part: Literal["train", "test"]) -> Counts:
    """Count one part's examples of each client and class (K, C), for the tables and the plots."""
    return np.stack([np.bincount(y[getattr(share, part)], minlength=classes) for share in shares.values()])


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
            raise SettingsError(
                f"natural: no client has {self.minimum} examples and one to train on; the maximum is {most}"
            )
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
        raise SettingsError("natural: these data don't name the examples' clients; use another partition")
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
            raise SettingsError(f"equal: {sizes.sum()} examples cannot be divided among {self.clients} clients")
        cards = np.repeat(np.arange(len(sizes)), sizes)
        seats = np.arange(len(cards)) % self.clients
        table = np.bincount(seats * len(sizes) + cards, minlength=self.clients * len(sizes))
        return table.reshape(self.clients, len(sizes))
