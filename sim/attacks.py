"""Hostile clients: attacks by their examples, their updates, or their sums.

**Sums.** All of them pass the bounds (`ridge_bounds`). Other labels are other columns of B, and leave G as it is, since
the examples of a class weigh by their number alone. label_flip: y ← C − 1 − y. class_swap: the first two classes change
places, and all else is right. noise: features and classes are drawn. sign_flip: features with the other sign. scaling:
label_flip by a client that says it has each window 900 times, so that it weighs thirty times as much; its weight is all
that a claim can raise. collusion: all attackers send one and the same, the sums of the first of them with every class
called by the next one's name.

**Updates**, sent instead of what was trained: noise: P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer: Machine
Learning with Adversaries, NeurIPS 2017, arXiv 1703.02757, section 5 (Gaussian). sign_flip: L. Li, W. Xu, T. Chen, G. B.
Giannakis, Q. Ling: RSA, AAAI 2019, arXiv 1811.03761, section 5. label_flip: V. Tolpegin, S. Truex, M. E. Gursoy, L.
Liu: Data Poisoning Attacks Against Federated Learning Systems, ESORICS 2020, arXiv 2007.08432. scaling: E. Bagdasaryan,
A. Veit, Y. Hua, D. Estrin, V. Shmatikov: How To Backdoor Federated Learning, AISTATS 2020, arXiv 1807.00459, section 4
(the change that was learnt from poisoned examples, so large that it survives the mean). little_is_enough: M. Baruch, G.
Baruch, Y. Goldberg: A Little Is Enough, NeurIPS 2019, arXiv 1902.06156, algorithm 3. examples: sign_flip by a client
that claims 10⁹ examples.

Of methods that send parameters only these are attacked; what else they send is as it was trained. Of sums
(`sim.attacks`) there are class_swap and collusion as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import get_args

import numpy as np
import torch

from federation.aggregation import ridge
from federation.method import Method
from federation.records import Examples, Tensors, Tree, Update
from federation.records.tree import squared_distance
from federation.seeds import generator
from federation.tasks.task import LabelledFeatures
from sim.data.federated_data import ClientData, FederatedData
from sim.errors import SettingsError
from sim.experiment.options import AttackKind

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


def _turned(sums: Tensors) -> Tensors:
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
    flipped = _turned(sums)
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
    "label_flip": _turned,
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


OF_NETWORKS_ALONE, OF_SUMS_ALONE = ("little_is_enough", "examples"), ("class_swap", "collusion")
CLAIMED = 10**9
STRENGTH: dict[AttackKind, float] = {"noise": 1000.0, "scaling": 10.0}
"""What an honest change is multiplied by; noise has so many times its norm."""


@dataclass(frozen=True)
class Attack:
    """Some clients of a federation are hostile, in every round that they take part in."""

    kind: AttackKind
    attackers: frozenset[str]

    @classmethod
    def drawn(cls, kind: AttackKind, share: float, names: Iterable[str], seed: int) -> Attack:
        """Draw round(share · K) of K clients; each has its own chance, so that one that joins changes no other's."""
        chances = {name: generator(seed, "attacker", name).random() for name in names}
        return cls(kind, frozenset(sorted(chances, key=lambda name: chances[name])[: round(share * len(chances))]))

    def on_data(self, data: FederatedData) -> FederatedData:
        """Return what clients of networks train on: flipped classes, y ← C − 1 − y, where the attack is by them.

        Of sums all is done to the updates: flipped classes are other columns of them.
        """
        if self.kind not in ("label_flip", "scaling"):
            return data
        classes = len(data.labels)
        hostile = {name: _flipped(data.clients[name], classes) for name in sorted(self.attackers)}
        return replace(data, clients={name: hostile.get(name, own) for name, own in data.clients.items()})

    def on_updates(
        self, updates: Sequence[Update], broadcasts: Mapping[str, Tree], seed: int, round_number: int
    ) -> Sequence[Update]:
        """Return a round's updates with the hostile ones in the place of what those clients trained."""
        if updates and "gram" in updates[0].tensors:
            return hostile_sums(self.kind, updates, self.attackers, seed, round_number)
        if self.kind == "little_is_enough":
            return self._little_is_enough(updates)
        return [
            self._hostile(update, broadcasts[update.client_id]["params"], seed, round_number)
            if update.client_id in self.attackers
            else update
            for update in updates
        ]

    def _hostile(self, update: Update, start: Tensors, seed: int, round_number: int) -> Update:
        params: Tensors = update.tensors["params"]
        match self.kind:
            case "noise":
                chance = generator(seed, "attack", round_number, update.client_id)
                return _with(update, self._noise(params, start, chance))
            case "sign_flip":
                return _with(update, _moved(params, start, -1.0))
            case "scaling":
                return _with(update, _moved(params, start, STRENGTH["scaling"]))
            case "examples":
                return _with(update, _moved(params, start, -1.0))._replace(examples=CLAIMED)
            case _:
                return update

    def _noise(self, params: Tensors, start: Tensors, chance: np.random.Generator) -> Tensors:
        norm = float(squared_distance(params, start)) ** 0.5
        drawn = {name: torch.from_numpy(chance.normal(size=tuple(value.shape))) for name, value in params.items()}
        length = sum(float(value.square().sum()) for value in drawn.values()) ** 0.5
        scale = STRENGTH["noise"] * norm / length
        return {name: (start[name] + value * scale).to(start[name].dtype) for name, value in drawn.items()}

    def _little_is_enough(self, updates: Sequence[Update]) -> Sequence[Update]:
        """Let all attackers send μ − z·σ of the honest parameters, z as large as hides among them."""
        honest = [update.tensors["params"] for update in updates if update.client_id not in self.attackers]
        hostile, n = len(updates) - len(honest), len(updates)
        if not hostile or len(honest) < 2:
            return updates
        supporters = n // 2 + 1 - hostile
        share = (n - hostile - supporters) / (n - hostile)
        z = NormalDist().inv_cdf(min(max(share, 0.5), 0.99))
        stacked = {name: torch.stack([tree[name] for tree in honest]) for name in honest[0]}
        sent = {name: value.mean(0) - z * value.std(0) for name, value in stacked.items()}
        return [_with(update, sent) if update.client_id in self.attackers else update for update in updates]


def drawn_attack(kind: AttackKind, share: float, names: Collection[str], seed: int) -> Attack:
    """Draw who is hostile, of all that train.

    Raises:
        SettingsError: if the share is of nobody.
    """
    attack = Attack.drawn(kind, share, names, seed)
    if not attack.attackers:
        least = math.ceil(100 * 0.5 / len(names)) / 100
        raise SettingsError(f"--attackers {share:g} of {len(names)} clients selects no clients; use {least:g} or more")
    return attack


def sends_sums(method: Method) -> bool:
    """Whether a method's updates are sums of features, and no parameters."""
    return "gram" in method.upload_groups


def check_attack(kind: AttackKind, method: Method) -> None:
    """Refuse an attack on what a method does not send.

    Raises:
        SettingsError: saying on what it is.
    """
    without = ("none", *(OF_NETWORKS_ALONE if sends_sums(method) else OF_SUMS_ALONE))
    known = [candidate for candidate in get_args(AttackKind) if candidate not in without]
    if kind not in known:
        raise SettingsError(f"--attack {kind} doesn't apply to what {method.name} sends; use {', '.join(known)}")
    if method.traits.pools_data or not (sends_sums(method) or method.has_global_model or kind == "label_flip"):
        why = "sends nothing" if method.traits.pools_data else "sends no model that all clients start a round from"
        raise SettingsError(f"--attack {kind}: {method.name} {why}; use fedavg or analytic, for instance")


def _moved(params: Tensors, start: Tensors, factor: float) -> Tensors:
    return {name: start[name] + factor * (value - start[name]) for name, value in params.items()}


def _with(update: Update, params: Tensors) -> Update:
    return update._replace(tensors={**update.tensors, "params": params})


def _flipped(client: ClientData, classes: int) -> ClientData:
    x, y = client.train
    return replace(client, train=Examples(x, torch.where(y < classes, classes - 1 - y, y)))  # a void pixel stays void
