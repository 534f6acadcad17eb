"""Reconstructs windows from a gradient: searches for those whose gradient is most similar to the observed one.

L. Zhu, Z. Liu, S. Han: Deep Leakage from Gradients, NeurIPS 2019, arXiv 1906.08935; J. Geiping, H. Bauermeister, H.
Dröge, M. Moeller: Inverting Gradients, NeurIPS 2020, arXiv 2003.14053: 1 − cos of the two gradients and a little total
variation, by Adam on the signs. Labels are given to the attacker (`batch_labels` shows that it has them).

Where the first layer is linear in the window, no search is needed: row i of its gradient is δ_i x, and δ_i the gradient
of bias i, so the quotient is x itself where one window made δ_i (L. Phong, Y. Aono, T. Hayashi, L. Wang, S. Moriai:
Privacy-Preserving Deep Learning via Additively Homomorphic Encryption, TIFS 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from federation.records import Examples, Tensors
from federation.seeds import generator
from sim.privacy_attacks.attacked_round import AttackedRound, Progress, auxiliary, halves
from sim.privacy_attacks.batch_labels import (
    batch_of,
    flat,
    gradient_at,
    mean_seen,
    members_seen,
    travelling,
    unflat,
    whole,
)
from sim.privacy_attacks.observation import AttackOutcome, AttackResult, Setting

TARGETS = 6
"""Devices whose window is made anew."""
MAX_WINDOWS = 4
"""Of a sum's windows at most so many are searched for; more would only be slower."""
LR = 0.05
VARIATION = 1e-3
ROWS = 8
"""Of a linear first layer the rows with the largest gradients of their biases are tried."""
SCORE = "the correlation of a window's numbers with the nearest window that was made (below 0 counts as 0)"
CHANCE = "the mean window of the class, of the devices that work for the server"


class Example(NamedTuple):
    """A window (T, channels) as it was, and as the attacker made it under some settings."""

    device: str
    true: Tensor
    made: dict[str, Tensor]  # by the settings' labels


def invert(attacked: AttackedRound, settings: Sequence[Setting], steps: int, progress: Progress) -> AttackResult:
    """Make one window of some devices anew, out of the gradient of one step on it.

    Raises:
        AnalysisError: if no parameters are sent.
    """
    travelling(attacked)
    names = attacked.devices
    drawn = generator(attacked.seed, "targets of inversion").permutation(len(names))[:TARGETS]
    targets = sorted(names[place] for place in drawn)
    windows = {name: batch_of(attacked, name, 1) for name in names}
    gradients = {name: whole(gradient_at(attacked, *window)) for name, window in windows.items()}
    guesses = {name: _class_means(attacked, helpers) for group, helpers in halves(attacked) for name in group}
    outcomes: dict[str, AttackOutcome] = {}
    examples = [Example(name, windows[name].x[0], {}) for name in targets[:2]]
    for number, setting in enumerate(settings):
        progress(f"windows out of gradients, {setting.label}", number, len(settings))
        seen, members = mean_seen(attacked, gradients, setting), members_seen(attacked, setting)
        labels = {name: _labels(windows, members[name], name) for name in targets}
        made = _made(attacked, {name: seen[name] for name in targets}, labels, steps)
        true = {name: windows[name].x[0] for name in targets}
        chance = {name: nearest(guesses[name][labels[name]], true[name])[0] for name in targets}
        found = {name: nearest(made[name], true[name]) for name in targets}
        outcomes[setting.key] = AttackOutcome({name: score for name, (score, _) in found.items()}, chance)
        for example in examples:
            example.made[setting.label] = found[example.device][1]
    text = (
        f"One window of {len(targets)} devices, made anew out of the gradient of one step on it ({steps} steps of "
        "search): the worst case, a device that trains on one window by plain gradient descent. A device of this run "
        "takes many steps on many windows, which is harder to undo. In a sum the attacker knows the classes of "
        f"{MAX_WINDOWS} windows, the target's among them; the nearest of what it makes counts, of its guesses too."
    )
    figures = {"examples": examples}
    return AttackResult("inversion", "Windows, from a gradient", text, SCORE, CHANCE, outcomes, figures)


def _labels(windows: dict[str, Examples], members: Sequence[str], target: str) -> Tensor:
    others = [name for name in members if name != target][: MAX_WINDOWS - 1]
    return torch.cat([windows[name].y for name in (target, *others)])


def _class_means(attacked: AttackedRound, helpers: Sequence[str]) -> Tensor:
    """Return the mean window (C, ...) of each class that the attacker has; of a class without any that of all."""
    own = auxiliary(attacked, helpers)
    x = attacked.setup.inputs(own.x)
    rows = [x[own.y == c] for c in range(attacked.classes)]
    return torch.stack([(row if len(row) else x).mean(0) for row in rows])


def nearest(made: Tensor, true: Tensor) -> tuple[float, Tensor]:
    """Return how a window correlates with the nearest of those made (n, ...), at least 0, and that one."""
    centred = (made - made.flatten(1).mean(1).view(-1, *[1] * true.dim())).flatten(1)
    target = (true - true.mean()).flatten()
    fit = (centred @ target) / (centred.norm(dim=1) * target.norm() + 1e-12)
    best = int(fit.argmax())
    return max(0.0, float(fit[best])), made[best]


def _made(attacked: AttackedRound, seen: dict[str, Tensor], labels: dict[str, Tensor], steps: int) -> dict[str, Tensor]:
    """Return windows (n, ...) made out of each gradient that was seen."""
    shape = batch_of(attacked, next(iter(seen)), 1).x.shape[1:]
    linear = linear_first_layer(attacked, int(np.prod(shape)))
    if linear is not None:
        return {name: by_quotient(unflat(attacked, vector), linear).view(-1, *shape) for name, vector in seen.items()}
    names = list(seen)
    least = min(map(len, labels.values()))  # the last sum may have more members than the others
    together = torch.stack([labels[name][:least] for name in names])
    draw = generator(attacked.seed, "starts of inversion", len(together[0]))
    begin = torch.from_numpy(draw.normal(0, 0.3, (len(names), len(together[0]), *shape))).float()
    made = search(attacked, torch.stack([seen[name] for name in names]), together, begin, steps)
    return dict(zip(names, made, strict=True))


def linear_first_layer(attacked: AttackedRound, size: int) -> tuple[str, str] | None:
    """Return the names of the first layer's weight (h, size) and bias (h,), if it is linear in the whole window."""
    params = list(travelling(attacked).items())
    for (weight, rows), (bias, values) in pairwise(params):
        if rows.dim() == 2 and rows.shape[1] == size and values.shape == rows.shape[:1]:
            return weight, bias
    return None


def by_quotient(gradient: Tensors, layer: tuple[str, str]) -> Tensor:
    """Return windows (n, size): rows of the weight's gradient over those of the bias's, the largest of these first."""
    rows, deltas = gradient[layer[0]], gradient[layer[1]]
    largest = deltas.abs().argsort(descending=True)[:ROWS]
    quotients: Tensor = rows[largest] / torch.where(deltas[largest] == 0, 1.0, deltas[largest])[:, None]
    return quotients


def search(attacked: AttackedRound, seen: Tensor, labels: Tensor, begin: Tensor, steps: int) -> Tensor:
    """Return windows (K, n, ...) whose gradients point where those seen (K, L) do, by Adam on signs from `begin`."""

    def misfit(x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        made = flat(gradient_at(attacked, x, y))
        cosine = (made @ target) / (made.norm() * target.norm() + 1e-12)
        found: Tensor = 1 - cosine + VARIATION * (x[:, 1:] - x[:, :-1]).abs().mean()
        return found

    step = torch.func.vmap(grad(misfit))
    x = begin.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=LR)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * 3 // 8, steps * 5 // 8, steps * 7 // 8], 0.3)
    for _ in range(steps):
        x.grad = step(x.detach(), labels, seen).sign()
        optimizer.step()
        schedule.step()
    return x.detach()
