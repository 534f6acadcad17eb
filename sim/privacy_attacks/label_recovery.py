"""Recovers which activities a person did, and how much: class counts from a device's upload in a round.

M. Bock, M. Hopp, K. Van Laerhoven, M. Moeller: Label Leakage in Federated Inertial-based Human Activity Recognition,
2025, arXiv 2505.20924, whose attacks are on one batch's gradient (`batch_labels`). After a round of many steps, by any
optimizer, no formula is left: the attacker trains made-up devices whose counts it knows, and fits a ridge regression
from what they send to their counts (the attack model of L. Melis, C. Song, E. De Cristofaro, V. Shmatikov: Exploiting
Unintended Feature Leakage in Collaborative Learning, S&P 2019, arXiv 1805.04049).

Counts that are sent as such need no attack: those beside prototypes, and √n_c in the last row of an analytic B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federation.aggregation.ridge import SUM_STEPS
from federation.records import Examples
from federation.seeds import generator
from sim.data.federated_data import joined
from sim.errors import AnalysisError
from sim.privacy_attacks.attacked_round import (
    CHANCE,
    SCORE,
    AttackedRound,
    Progress,
    Sent,
    Shares,
    as_shares,
    auxiliary,
    halves,
    judged,
    shares_of,
)
from sim.privacy_attacks.observation import AttackResult, Seen, Setting, Vector

Reader = Callable[[NDArray[np.float64]], Shares]
"""read(signs (k,) less those in the middle) -> shares (C,) less the average."""

MADE_UP = 72
"""Devices that the attacker trains for itself, with the windows of each half."""
MAX_MADE_UP_WINDOWS = 1024
RIDGES = np.logspace(-3, 4, 15)
REFINEMENTS = 6
"""How often a guess is tried out on a made-up device of its own, where the server sees single devices."""
CONCENTRATIONS = 0.5, 3.0
"""Of the Dirichlet distributions that made-up devices' shares are drawn from: one-sided and even ones."""


def from_updates(attacked: AttackedRound, settings: Sequence[Setting], progress: Progress) -> AttackResult:
    """Read the shares out of what devices send in the round."""
    groups = attacked.setup.method.sum_groups
    if "counts" in groups or "moment" in groups:
        guesses = {setting.key: _read(attacked, setting) for setting in settings}
    else:
        guesses = _learnt(attacked, settings, progress)
    text = "How many windows of each activity a device has, read out of what it sends in the round. " + _how(groups)
    true = {name: attacked.shares(name) for name in attacked.devices}
    outcomes = {key: judged(guessed, true) for key, guessed in guesses.items()}
    return AttackResult("labels", "Activities, from the round's update", text, SCORE, CHANCE, outcomes)


def _how(groups: Mapping[str, object]) -> str:
    if "counts" in groups:
        return "The method sends the counts themselves, beside its prototypes."
    if "moment" in groups:
        return "The last row of B is √n of each class: it need only be squared."
    return (
        "The attacker knows the federation's average, and has the windows of half of the devices, which work for the "
        "server: it trains made-up devices on them, and learns what counts go with what change of the model. The other "
        "half is attacked."
    )


def _read(attacked: AttackedRound, setting: Setting) -> dict[str, Shares]:
    """Take the counts as they were sent; where there is noise, drawn to the average as far as noise explains them."""
    average, disguise = attacked.average_shares(), attacked.disguise(setting)
    mean = sum(len(attacked.data.clients[name].train.y) for name in attacked.devices) / len(attacked.devices)
    guessed = {}
    for name, seen in attacked.seen(setting).items():
        sent, members = attacked.sent(seen), len(seen.members)
        if sent.counts is not None:
            counts, unit = sent.counts.numpy(), 1.0
        else:  # √n in steps, of which noise is of the number and not of its square
            counts, unit = _roots(sent), 2 * mean**0.5 / SUM_STEPS
        if disguise is not None:
            noise = len(average) * (disguise.deviation * unit) ** 2 / members
            apart = counts - mean * average
            counts = mean * average + max(0.0, 1 - noise / max(1e-9, float(apart @ apart))) * apart
        guessed[name] = as_shares(counts, average)
    return guessed


def _roots(sent: Sent) -> Shares:
    """Return counts of classes out of the last row of B, Σ √n over the sum's members."""
    if sent.moment is None:
        raise AnalysisError("neither counts nor B were sent")
    found: Shares = (sent.moment[-1].numpy() / SUM_STEPS).clip(min=0) ** 2
    return found


def _learnt(attacked: AttackedRound, settings: Sequence[Setting], progress: Progress) -> dict[str, dict[str, Shares]]:
    """Read changes of the model by a regression on those of made-up devices, for each half of the devices."""
    found: dict[str, dict[str, Shares]] = {setting.key: {} for setting in settings}
    average = attacked.average_shares()
    for targets, helpers in halves(attacked):
        made_up = _made_up(attacked, helpers)
        vectors = attacked.train(made_up, progress)
        truth = np.stack([shares_of(made_up[name].y, attacked.classes) for name in vectors])
        signs = Signs.of(attacked, auxiliary(attacked, helpers))
        readers: dict[float, Reader] = {}
        for setting in settings:
            seen = attacked.seen(setting)
            sums = {view.members: view for view in seen.values()}  # devices of one sum are read once
            rows = {members: signs.read(attacked.sent(view)) for members, view in sums.items()}
            middle = np.mean([rows[view.members] for view in seen.values()], axis=0)
            if setting.noise not in readers:
                readers[setting.noise] = fitted(_noisy_signs(attacked, vectors, setting, signs), truth)
            read = readers[setting.noise]
            guessed = {name: as_shares(average + read(rows[seen[name].members] - middle), average) for name in targets}
            if setting.members == 1 and not setting.noise:
                own = {name: rows[seen[name].members] for name in targets}
                guessed = _refined(
                    attacked, helpers, guessed, partial(_difference, attacked, signs, read, own), progress
                )
            found[setting.key] |= guessed
    return found


def _refined(
    attacked: AttackedRound,
    helpers: Sequence[str],
    guessed: dict[str, Shares],
    difference: Callable[[str, Vector], Shares],
    progress: Progress,
) -> dict[str, Shares]:
    """Train a made-up device of each guess, as large as the real one, and correct the guess by how they differ."""
    pool = joined([attacked.data.clients[name].train for name in helpers])
    for turn in range(REFINEMENTS):
        draw = generator(attacked.seed, "refinement", turn, *helpers)
        made_up = {
            name: _drawn(pool, share, len(attacked.data.clients[name].train.y), draw) for name, share in guessed.items()
        }
        for name, vector in attacked.train(made_up, progress).items():
            tried = shares_of(made_up[name].y, attacked.classes)
            guessed[name] = as_shares(tried + difference(name, vector), guessed[name])
    return guessed


def _difference(
    attacked: AttackedRound,
    signs: Signs,
    read: Reader,
    rows: Mapping[str, NDArray[np.float64]],
    name: str,
    vector: Vector,
) -> Shares:
    """Return by how much a device's shares differ from those of the made-up device that has sent `vector`."""
    return read(rows[name] - signs.read(attacked.sent(Seen(vector, (name,)))))


def _made_up(attacked: AttackedRound, helpers: Sequence[str]) -> dict[str, Examples]:
    """Draw devices of the helpers' windows: as many windows as real ones have, shares of a Dirichlet distribution."""
    pool = joined([attacked.data.clients[name].train for name in helpers])
    draw = generator(attacked.seed, "made-up devices", *helpers)
    sizes = [len(attacked.data.clients[name].train.y) for name in helpers]
    present = np.unique(pool.y.numpy())
    made: dict[str, Examples] = {}
    for number in range(MADE_UP):
        share = np.zeros(attacked.classes)
        share[present] = draw.dirichlet(np.full(len(present), CONCENTRATIONS[number % 2]))
        made[f"made up {number}"] = _drawn(pool, share, sizes[number % len(sizes)], draw)
    return made


def _drawn(pool: Examples, share: Shares, count: int, draw: np.random.Generator) -> Examples:
    """Draw windows in these shares; those of a class that the pool has none of are left out."""
    labels = pool.y.numpy()
    present = np.isin(np.arange(len(share)), labels)
    weights = np.where(present, share, 0.0) + 1e-9 * present
    counts = draw.multinomial(min(MAX_MADE_UP_WINDOWS, count), weights / weights.sum())
    parts = [draw.choice(np.flatnonzero(labels == c), n) for c, n in enumerate(counts) if n]
    rows = torch.from_numpy(np.concatenate(parts))
    return Examples(pool.x[rows], pool.y[rows])


def _noisy_signs(
    attacked: AttackedRound, vectors: Mapping[str, Vector], setting: Setting, signs: Signs
) -> NDArray[np.float64]:
    """Return what the made-up devices' numbers say, with as much noise as those of real ones."""
    disguise = attacked.disguise(setting)
    sent = [
        vector if disguise is None else disguise.applied(vector, name, attacked.seed)
        for name, vector in vectors.items()
    ]
    return np.stack([signs.read(attacked.sent(Seen(vector, ("one",)))) for vector in sent])


class Signs(NamedTuple):
    """What in a change of the model goes with counts: what the moved model expects of the attacker's windows."""

    attacked: AttackedRound
    own: Examples
    before: Tensor  # log-probabilities (n, C) of these windows by the model that was sent

    @classmethod
    def of(cls, attacked: AttackedRound, own: Examples) -> Signs:
        """Look at these windows."""
        return cls(attacked, own, attacked.output(attacked.start, own.x).logits.log_softmax(1).double())

    def read(self, sent: Sent) -> NDArray[np.float64]:
        """Return means over the windows, and over those of each class: log-probabilities' moves, logits, softmax."""
        logits = self.attacked.output(self.attacked.model(sent), self.own.x).logits.double()
        change = logits.log_softmax(1) - self.before
        by_class = [self.own.y == c for c in range(self.attacked.classes) if bool((self.own.y == c).any())]
        rows = [change.mean(0)]
        for mask in by_class:
            rows += [change[mask].mean(0), (logits - logits.mean(1, keepdim=True))[mask].mean(0)]
            rows += [logits.softmax(1)[mask].mean(0)]
        found: NDArray[np.float64] = torch.cat(rows).numpy()
        return found


def fitted(rows: NDArray[np.float64], shares: NDArray[np.float64]) -> Reader:
    """Fit a ridge regression of shares (n, C) on rows (n, k), both less their means, and return what reads a row (k,).

    λ is that of the least error on left-out rows, by the closed form of leaving one out.
    """
    scale = rows.std(0) + 1e-12
    x, y = (rows - rows.mean(0)) / scale, shares - shares.mean(0)
    left, values, right = np.linalg.svd(x, full_matrices=False)
    best, chosen = np.inf, np.zeros((x.shape[1], y.shape[1]))
    for ridge in RIDGES:
        shrunk = values**2 / (values**2 + ridge)
        hat = (left * shrunk) @ left.T
        error = float((((y - hat @ y) / (1 - np.diag(hat) - 1 / len(x)).clip(1e-6)[:, None]) ** 2).mean())
        if error < best:
            best, chosen = error, (right.T * (values / (values**2 + ridge))) @ (left.T @ y)
    return lambda row: (row / scale) @ chosen
