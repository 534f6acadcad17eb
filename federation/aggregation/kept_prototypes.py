"""Each client's latest prototypes in the server's state, so that a round replaces only its own clients'.

For each client, the state has its prototypes (C, D), its counts (C,), the discount of that update, and the number of
rounds since. They are averaged in the order of the clients' names, so that rounding doesn't depend on the order of
rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch

from federation.aggregation import prototypes
from federation.aggregation.averaging import Accumulator
from federation.aggregation.prototypes import ClassSums, PrototypeSums
from federation.records import Tree, Update

CLIENTS = "clients"
"""The entry of the state."""
MAX_CLIENTS = 4096
"""Maximum number of clients; beyond it the oldest are dropped. With six classes of 192 features this is 19 MB."""


@dataclass(frozen=True, kw_only=True)
class KeptUploads(PrototypeSums):
    """A round's uploads in order of arrival."""

    uploads: tuple[Update, ...] = ()


def fold(accumulator: Accumulator | None, update: Update, weight: float) -> KeptUploads:
    """Add one client's upload."""
    before = KeptUploads.of(accumulator)
    return KeptUploads(weight=before.weight + weight, uploads=(*before.uploads, update))


def finish(state: Tree, uploads: Iterable[Update], *, by_examples: bool) -> Tree:
    """Return the next state: these clients' new prototypes in place of their old ones, and the mean of all."""
    kept = {name: {**entry, "age": entry["age"] + 1} for name, entry in state.get(CLIENTS, {}).items()}
    kept |= {update.client_id: _entry(update) for update in uploads}
    if len(kept) > MAX_CLIENTS:
        newest = sorted(kept, key=lambda name: (int(kept[name]["age"]), name))[:MAX_CLIENTS]
        kept = {name: kept[name] for name in newest}
    return _averaged(state, kept, by_examples)


def forget(state: Tree, clients: Collection[str], *, by_examples: bool) -> Tree:
    """Return the state without these clients' prototypes; a class that only they had loses its prototype."""
    kept: dict[str, Tree] = state.get(CLIENTS, {})
    left = {name: entry for name, entry in kept.items() if name not in clients}
    if len(left) == len(kept):
        return state
    unknown = {"prototypes": torch.zeros_like(state["prototypes"]), "known": torch.zeros_like(state["known"])}
    return _averaged({**state, **unknown}, left, by_examples)


def _averaged(state: Tree, kept: dict[str, Tree], by_examples: bool) -> Tree:
    sums: ClassSums | None = None
    for name in sorted(kept):
        entry = kept[name]
        tensors = {"prototypes": entry["prototypes"], "counts": entry["counts"]}
        update = Update(name, 0, 0, tensors, float(entry["discount"]))
        sums = prototypes.fold(sums, update, by_examples=by_examples)
    new = {**state, **prototypes.finish(state, sums)}
    # the wire leaves out an empty group
    return {**new, CLIENTS: dict(sorted(kept.items()))} if kept else {k: v for k, v in new.items() if k != CLIENTS}


def _entry(update: Update) -> Tree:
    return {
        "prototypes": update.tensors["prototypes"],
        "counts": update.tensors["counts"],
        "discount": torch.tensor(update.discount, dtype=torch.float64),
        "age": torch.tensor(0),
    }
