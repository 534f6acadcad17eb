"""Makes a continuous federation's version from all its clients' current contributions: live, simulated, and in checks.

The plain mean needs only the changes since the last version (`Method.aggregate`). Rules that compare clients need all
of them: `max_weight_ratio` caps the weight of a client's examples, `norm_factor` leaves out clients whose sums are too
large for that weight, and `aggregation` chooses among the others. The resulting state depends only on the clients that
are present. So for any rules, it equals the state of a federation that never had the departed clients, bit for bit.

`KeptContributions` stores each client's part of the sums for drivers without a database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import NamedTuple

import torch

from federation.aggregation.screening import NormHistory, Screening, UpdateClaim, screen, shortfall
from federation.errors import RoundError
from federation.method import SumMethod
from federation.plan import RoundSettings
from federation.records import Tree, Update
from federation.records.tree import map_tree

RULES = "rules"
"""Of a state that was made of all clients' parts: the settings that it was made with."""
_SETTINGS = ("max_weight_ratio", "norm_factor")


class CombinedSums(NamedTuple):
    """A state, whose part was capped or left out of it, and whose parts it is of."""

    state: Tree
    screening: Screening
    clients: Sequence[str]


def needs_all(method: SumMethod, settings: RoundSettings, state: Tree) -> bool:
    """Whether the next version needs what every client has in the federation, and not only what has changed."""
    return method.aggregation != "mean" or _screens(settings) or RULES in state


def combined(
    method: SumMethod,
    settings: RoundSettings,
    seed: int,
    state: Tree,
    clients: Sequence[str],
    read: Callable[[str], Update],
) -> CombinedSums:
    """Make the next state of all clients' parts, which `read` returns; one is in memory at a time, or a group's sum.

    Raises:
        RoundError: if fewer than `minimum_clients` are left.
    """
    names = sorted(clients)
    claims, examples = _claims(method, names, read) if _screens(settings) else ({}, {})
    screening = screen(settings, claims, NormHistory())
    if reason := shortfall(settings, claims, screening):
        raise RoundError(reason)

    def bounded(name: str) -> Update:
        weight = screening.capped.get(name)
        return read(name) if weight is None else method.capped_contribution(read(name), weight)

    left = [name for name in names if name not in screening.excluded]
    chosen = method.chosen_contributions(left, bounded, seed)
    # nobody at all is an update with nothing in it
    updates = (bounded(name) for name in chosen) if chosen else iter([Update("", 0, 0, {})])
    start = method.without_contributions({name: value for name, value in state.items() if name != RULES})
    new = method.aggregate(start, updates)
    rules = {RULES: _written(settings)} if method.aggregation != "mean" or _screens(settings) else {}
    # a weight is a root: what a client counts with shrinks by its square
    counted = {
        name: floor(examples[name] * (weight / claims[name].examples) ** 2) for name, weight in screening.capped.items()
    }
    return CombinedSums({**new, **rules}, replace(screening, capped=counted), chosen)


def settings_of(state: Tree, settings: RoundSettings) -> RoundSettings:
    """Return the settings with the rules that the state was made with: a plan's may have changed since."""
    if RULES not in state:
        return settings.model_copy(update=dict.fromkeys(_SETTINGS))
    written = {name: float(state[RULES][name]) for name in _SETTINGS}
    return settings.model_copy(update={name: value if value < torch.inf else None for name, value in written.items()})


def _claims(
    method: SumMethod, names: Sequence[str], read: Callable[[str], Update]
) -> tuple[dict[str, UpdateClaim], dict[str, int]]:
    """Return each client's claim, and how many examples it says it has."""
    claims, examples = {}, {}
    for name in names:
        update = read(name)
        claims[name], examples[name] = method.contribution_claim(update), update.examples
    return claims, examples


def _screens(settings: RoundSettings) -> bool:
    return settings.clip_norm is None and any(getattr(settings, name) is not None for name in _SETTINGS)


def _written(settings: RoundSettings) -> Tree:
    values = {name: getattr(settings, name) if settings.clip_norm is None else None for name in _SETTINGS}
    return {
        name: torch.tensor(torch.inf if value is None else value, dtype=torch.float64) for name, value in values.items()
    }


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
