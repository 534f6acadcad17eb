"""What hostile clients of a simulation send as their sums: all of it passes the bounds (`ridge_bounds`).

Other labels are other columns of B, and leave G as it is, since the examples of a class weigh by their number alone.
label_flip: y ← C − 1 − y. class_swap: the first two classes change places, and all else is right. noise: features and
classes are drawn. sign_flip: features with the other sign. scaling: label_flip by a client that says it has each window
900 times, so that it weighs thirty times as much; its weight is all that a claim can raise. collusion: all attackers
send one and the same, the sums of the first of them with every class called by the next one's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from federation.aggregation import ridge
from federation.records import Tensors, Update
from federation.seeds import generator
from federation.tasks.task import LabelledFeatures

REPEATED = 900
PADDING = 1000.0
"""Steps on the diagonal, so that what was rounded before it was multiplied leaves no eigenvalue below 0."""
NOISE = 2.0
"""Standard deviation of drawn features, in those of real ones."""
_CLIP = 4.0


def hostile_sums(
    kind: str, updates: Sequence[Update], attackers: frozenset[str], seed: int, round_number: int
) -> Sequence[Update]:
    """Return a round's updates with the hostile ones in the place of what those clients measured.

    Raises:
        ValueError: for an attack that is not on sums.
    """
    if kind == "collusion":
        return _colluding(updates, attackers)
    if kind == "noise":
        return [
            _drawn(update, generator(seed, "attack", round_number, update.client_id))
            if update.client_id in attackers
            else update
            for update in updates
        ]
    if kind not in _ATTACKS:
        raise ValueError(f"attack {kind!r}: expected noise, collusion, {', '.join(_ATTACKS)} on sums")
    change = _ATTACKS[kind]
    return [
        update._replace(tensors=change(update.tensors)) if update.client_id in attackers else update
        for update in updates
    ]


def _flipped(sums: Tensors) -> Tensors:
    return {**sums, "moment": sums["moment"].flip(1)}


def _swapped(sums: Tensors) -> Tensors:
    order = torch.arange(sums["moment"].shape[1])
    order[:2] = torch.tensor([1, 0])
    return {**sums, "moment": sums["moment"][:, order]}


def _negated(sums: Tensors) -> Tensors:
    size = len(sums["moment"])
    signs = -torch.ones(size, dtype=torch.int32)
    signs[-1] = 1  # the constant feature stays
    rows, columns = torch.triu_indices(size, size)
    return {"gram": sums["gram"] * signs[rows] * signs[columns], "moment": sums["moment"] * signs[:, None]}


def _scaled(sums: Tensors) -> Tensors:
    """Return the sums of so many copies of each window, consistent in themselves although rounding grows with them."""
    factor, size = REPEATED**0.5, len(sums["moment"])
    flipped = _flipped(sums)
    moment = (flipped["moment"].double() * factor).round()
    counts = (flipped["moment"][-1].double() / ridge.SUM_STEPS).square().round()
    moment[-1] = ((counts * REPEATED).sqrt() * ridge.SUM_STEPS).round()
    gram = ridge.unpacked((flipped["gram"].double() * factor).round(), size)
    gram.diagonal().add_(PADDING)
    gram[:, -1] = moment.sum(1)
    rows, columns = torch.triu_indices(size, size)
    large = {"gram": gram[rows, columns], "moment": moment}
    return {name: value.clamp(1 - ridge.LIMIT, ridge.LIMIT - 1).int() for name, value in large.items()}


_ATTACKS: dict[str, Callable[[Tensors], Tensors]] = {
    "label_flip": _flipped,
    "class_swap": _swapped,
    "sign_flip": _negated,
    "scaling": _scaled,
}


def _drawn(update: Update, chance: np.random.Generator) -> Update:
    size, classes = update.tensors["moment"].shape
    rows = LabelledFeatures(
        torch.from_numpy(chance.normal(0, NOISE, (update.examples, size - 1))),
        torch.from_numpy(chance.integers(0, classes, update.examples)),
        torch.ones(update.examples),
    )
    empty = ridge.empty_ridge_sums(classes, size - 1, torch.zeros(()))
    return update._replace(tensors=ridge.travelling(ridge.added(empty, rows, _CLIP)))


def _colluding(updates: Sequence[Update], attackers: frozenset[str]) -> Sequence[Update]:
    first = next((update.tensors for update in updates if update.client_id in attackers), None)
    if first is None:
        return updates
    sent = {**first, "moment": first["moment"].roll(1, 1)}
    return [update._replace(tensors=sent) if update.client_id in attackers else update for update in updates]
