"""Membership inference: whether a device has trained on a window, from its upload.

By models: the loss of a window is lower than other models' on it. N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis,
F. Tramèr: Membership Inference Attacks From First Principles (LiRA), S&P 2022, arXiv 2112.03570, offline: the reference
models are those of other devices or sums of the same round, which have not seen the window; where there are none, the
model that was sent. By analytic sums: a window in them lies in the span of G, so aᵀ (G + ε tr/d I)⁻¹ a is small. By
prototypes: how much nearer the window is to the device's mean of its class than to the federation's.

Members are training windows of a device, the others are its test windows: later ones of the same person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federation.aggregation.ridge import SUM_STEPS, unpacked
from federation.records import Examples
from federation.seeds import generator
from sim.data.federated_data import joined
from sim.errors import AnalysisError
from sim.privacy_attacks.attacked_round import AttackedRound, Sent
from sim.privacy_attacks.observation import AttackOutcome, AttackResult, Seen, Setting, auc

WINDOWS = 24
"""Of a device's training windows and of its test windows so many are judged."""
REFERENCES = 4
"""Models of others that a window's loss is held against."""
RELATIVE_RIDGE = 1e-6
SCORE = "AUC: how likely a window that the device learnt from looks more like one than a window that it did not"
CHANCE = "the same test of a sum of all other devices, which have none of these windows"

Judge = Callable[[Sent, Sequence[Sent], Examples], NDArray[np.float64]]
"""judge(what is seen of a device, what is seen of others, windows) -> how much each looks learnt from (n,)."""


def infer_membership(attacked: AttackedRound, settings: Sequence[Setting]) -> AttackResult:
    """Judge windows of each device that has test windows.

    Raises:
        AnalysisError: if none has, or nothing is sent that windows can be held against.
    """
    judge, text = _judge(attacked)
    names = [name for name in attacked.devices if len(attacked.data.clients[name].test.y)]
    if not names:
        raise AnalysisError("no device has a test window, which membership is told apart from")
    windows = {name: _windows(attacked, name) for name in names}
    guessed = {name: _auc(judge, attacked.others(name), (), windows[name]) for name in names}
    outcomes: dict[str, AttackOutcome] = {}
    for setting in settings:
        seen = attacked.seen(setting)
        scores = {
            name: _auc(judge, attacked.sent(seen[name]), _references(attacked, seen, name), windows[name])
            for name in names
        }
        outcomes[setting.key] = AttackOutcome(scores, guessed)
    return AttackResult("membership", "Was this window learnt from?", text, SCORE, CHANCE, outcomes)


def _judge(attacked: AttackedRound) -> tuple[Judge, str]:
    groups = attacked.setup.method.sum_groups
    began = f"{WINDOWS} training windows of each device are told apart from {WINDOWS} test windows of the same person, "
    if "gram" in groups:
        return _by_span(attacked), began + (
            "which lie less in the span of its G. A device with fewer windows than features shows exactly which ones."
        )
    if "params" in groups:
        return _by_loss(attacked), began + "by their losses under the device's model and under those of others."
    if "prototypes" in groups:
        return _by_distance(attacked), began + "by how near they are to the device's means."
    raise AnalysisError(f"{attacked.setup.method.name} sends nothing that windows can be held against")


def _windows(attacked: AttackedRound, name: str) -> tuple[Examples, Examples]:
    client = attacked.data.clients[name]
    parts = []
    for part, examples in (("train", client.train), ("test", client.test)):
        draw = generator(attacked.seed, "membership", name, part)
        rows = draw.permutation(len(examples.y))[:WINDOWS]
        parts.append(Examples(examples.x[rows], examples.y[rows]))
    return parts[0], parts[1]


def _references(attacked: AttackedRound, seen: Mapping[str, Seen], name: str) -> list[Sent]:
    """Return what the server has of others, of sums that the device is not in; models are held against these alone."""
    if "params" not in attacked.setup.method.sum_groups:
        return []
    others = {view.members: view for view in seen.values() if name not in view.members}
    chosen = sorted(others)
    order = generator(attacked.seed, "references", name).permutation(len(chosen))[:REFERENCES]
    return [attacked.sent(others[chosen[place]]) for place in order]


def _auc(judge: Judge, own: Sent, others: Sequence[Sent], windows: tuple[Examples, Examples]) -> float:
    found, members = judge(own, others, joined(list(windows))), len(windows[0].y)
    return auc(found[:members], found[members:])


def _by_loss(attacked: AttackedRound) -> Judge:
    def judge(own: Sent, others: Sequence[Sent], windows: Examples) -> NDArray[np.float64]:
        models = [attacked.model(other) for other in others] or [attacked.start]
        reference = np.stack([attacked.losses(model, windows) for model in models])
        spread = reference.std(0) if len(models) > 2 else np.zeros(len(windows.y))
        difference: NDArray[np.float64] = reference.mean(0) - attacked.losses(attacked.model(own), windows)
        return difference / (spread + 0.1)  # of few models a spread may be 0 by chance

    return judge


def _by_span(attacked: AttackedRound) -> Judge:
    def judge(own: Sent, others: Sequence[Sent], windows: Examples) -> NDArray[np.float64]:
        del others
        features = with_one(attacked, windows.x)
        if own.gram is None:
            return np.zeros(len(features))
        gram = unpacked(own.gram / SUM_STEPS, features.shape[1])
        ridge = RELATIVE_RIDGE * gram.diagonal().mean().abs() * torch.eye(len(gram), dtype=gram.dtype)
        factor, failed = torch.linalg.cholesky_ex(gram + ridge)
        if not int(failed):
            whitened = torch.linalg.solve_triangular(factor, features.T, upper=False)
            return np.asarray(-(whitened**2).sum(0))
        values, vectors = torch.linalg.eigh(gram)
        # noise may leave values below 0
        strength = values.clamp(min=0) + RELATIVE_RIDGE * values.abs().mean()
        found: NDArray[np.float64] = -((features @ vectors) ** 2 / strength).sum(1).numpy()
        return found

    return judge


def with_one(attacked: AttackedRound, x: Tensor) -> Tensor:
    """Return features (n, D + 1) of windows as analytic sums have them, with a 1 behind, in float64."""
    features = attacked.output(attacked.start, x).features.double()
    clip = float(getattr(attacked.setup.method, "clip", np.inf))
    return torch.cat([features.clamp(-clip, clip), torch.ones(len(features), 1, dtype=torch.float64)], 1)


def _by_distance(attacked: AttackedRound) -> Judge:
    everybody = attacked.sent(Seen(np.sum(list(attacked.vectors.values()), axis=0), tuple(attacked.devices))).prototypes

    def judge(own: Sent, others: Sequence[Sent], windows: Examples) -> NDArray[np.float64]:
        del others
        features = attacked.output(attacked.start, windows.x).features.double()
        if own.prototypes is None or everybody is None:
            return np.zeros(len(features))
        nearer = [
            (features - means[windows.y]).norm(dim=1).nan_to_num(nan=0.0) for means in (everybody, own.prototypes)
        ]
        found: NDArray[np.float64] = (nearer[0] - nearer[1]).numpy()
        return found

    return judge
