"""The gradient of one batch per device, as the server would see it: the smallest step that a device can take.

Which activities one batch was of, by the gradient of the last layer's bias: linear equations for counts of classes.
Of a batch of B windows with n_c of class c, B g = Σ_c n_c (p_c − e_c), where g is the bias's gradient and p_c the mean
softmax of class c. A. Wainakh et al.: User-Level Label Leakage from Gradients in Federated Learning (LLG*), PoPETs
2022, arXiv 2105.09369; K. Ma et al.: Instance-wise Batch Label Restoration via Gradients (iLRG), ICLR 2023. Differs
from the papers: p_c is measured on windows that the attacker has, and all counts are solved at once by least squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad

from federation.records import Batch, Examples, Tensors
from federation.records.tree import select
from federation.seeds import generator
from sim.errors import AnalysisError
from sim.privacy_attacks.attacked_round import (
    CHANCE,
    SCORE,
    AttackedRound,
    Shares,
    as_shares,
    auxiliary,
    halves,
    judged,
    last_layer,
    shares_of,
)
from sim.privacy_attacks.observation import AttackOutcome, AttackResult, Disguise, Setting, Vector, observe

STEPS = float(1 << 24)
"""Whole numbers to 1 of a gradient, as all that is added up."""


def batch_of(attacked: AttackedRound, name: str, size: int) -> Examples:
    """Return some of a device's training windows as the network takes them, drawn at random."""
    examples = attacked.data.clients[name].train
    rows = generator(attacked.seed, "batch of an attack", name).permutation(len(examples.y))[:size]
    return Examples(attacked.setup.inputs(examples.x[rows]), examples.y[rows])


def travelling(attacked: AttackedRound) -> Tensors:
    """Return the parameters that a device sends, as the server has them.

    Raises:
        AnalysisError: if the method sends none.
    """
    if "params" not in attacked.setup.method.sum_groups:
        raise AnalysisError(f"{attacked.setup.method.name} sends no parameters, so there is no gradient to see")
    return select(attacked.start.params, attacked.setup.method.shared)


def gradient_at(attacked: AttackedRound, x: Tensor, y: Tensor) -> Tensors:
    """Return the gradient of the mean loss of windows x (B, ...) by all that travels; dropout is off."""
    setup, start = attacked.setup, attacked.start

    def loss(params: Tensors) -> Tensor:
        ones = torch.ones(len(y))
        output = setup.network.evaluate({**start.params, **params}, start.buffers, x, ones)
        return setup.task.mean_loss(output, Batch(x, y, ones))

    found: Tensors = grad(loss)(travelling(attacked))
    return found


def flat(gradient: Tensors) -> Tensor:
    """Return a gradient as one vector."""
    return torch.cat([value.reshape(-1) for value in gradient.values()])


def unflat(attacked: AttackedRound, vector: Tensor) -> Tensors:
    """Return a vector as the gradient that it was of."""
    like = travelling(attacked)
    parts = torch.split(vector, [value.numel() for value in like.values()])
    return {name: part.reshape(like[name].shape) for name, part in zip(like, parts, strict=True)}


def whole(gradient: Tensors) -> Vector:
    """Return a gradient in whole numbers."""
    found: Vector = np.rint(flat(gradient).double().numpy() * STEPS)
    return found


def mean_seen(attacked: AttackedRound, gradients: Mapping[str, Vector], setting: Setting) -> dict[str, Tensor]:
    """Return the mean gradient that the server has of each device's sum, as one vector of float32."""
    everything = np.ones(len(next(iter(gradients.values()))), bool)
    disguise = Disguise.of(setting, gradients, everything, attacked.noisy)
    seen = observe(gradients, setting, disguise, attacked.seed)
    means = {view.members: torch.from_numpy(view.total / len(view.members) / STEPS).float() for view in seen.values()}
    return {name: means[view.members] for name, view in seen.items()}


def deviation_seen(attacked: AttackedRound, gradients: Mapping[str, Vector], setting: Setting) -> float:
    """Return the deviation of the noise in each number of `mean_seen`."""
    everything = np.ones(len(next(iter(gradients.values()))), bool)
    disguise = Disguise.of(setting, gradients, everything, attacked.noisy)
    return 0.0 if disguise is None else disguise.deviation / setting.members**0.5 / STEPS


def members_seen(attacked: AttackedRound, setting: Setting) -> dict[str, tuple[str, ...]]:
    """Return in whose sum each device is."""
    nothing = {name: np.zeros(1) for name in attacked.devices}
    return {name: view.members for name, view in observe(nothing, setting, None, attacked.seed).items()}


BATCH = 32
"""Windows of the batch."""


def from_gradients(attacked: AttackedRound, settings: Sequence[Setting]) -> AttackResult:
    """Solve the equations of the last layer's bias for the counts of one batch of each device.

    Raises:
        AnalysisError: if the network's last layer does not travel, or has no bias.
    """
    bias = _bias(attacked)
    batches = {name: batch_of(attacked, name, BATCH) for name in attacked.devices}
    gradients = {name: whole(gradient_at(attacked, *batch)) for name, batch in batches.items()}
    true = {name: shares_of(batch.y, attacked.classes) for name, batch in batches.items()}
    expected: dict[str, NDArray[np.float64]] = {}
    for targets, helpers in halves(attacked):
        expected |= dict.fromkeys(targets, expected_softmax(attacked, auxiliary(attacked, helpers)))
    average: Shares = np.mean(list(true.values()), axis=0)
    outcomes: dict[str, AttackOutcome] = {}
    for setting in settings:
        means = mean_seen(attacked, gradients, setting)
        middle = _bias_of(attacked, torch.stack(list(means.values())).mean(0), bias)
        noise = deviation_seen(attacked, gradients, setting)
        guessed = {
            name: solved(_bias_of(attacked, mean, bias) - middle, expected[name], average, noise)
            for name, mean in means.items()
        }
        outcomes[setting.key] = judged(guessed, true)
    text = (
        f"How many of {BATCH} windows are of each activity, read out of the gradient of one step on them: what a "
        "device with so few windows sends, or one that sends gradients. The attacker knows the average of all these "
        "batches and solves linear equations for how one differs from it."
    )
    return AttackResult("batch_labels", "Activities, from one batch's gradient", text, SCORE, CHANCE, outcomes)


def _bias(attacked: AttackedRound) -> str:
    layer = last_layer(travelling(attacked))
    name = list(layer)[-1] if layer else ""
    if not layer or layer[name].shape != (attacked.classes,):
        method = attacked.setup.method.name
        raise AnalysisError(f"{method} sends no bias of a last layer of {attacked.classes} classes")
    return name


def _bias_of(attacked: AttackedRound, vector: torch.Tensor, bias: str) -> NDArray[np.float64]:
    found: NDArray[np.float64] = unflat(attacked, vector)[bias].double().numpy()
    return found


def expected_softmax(attacked: AttackedRound, own: Examples) -> NDArray[np.float64]:
    """Return the mean softmax (C, C) of the attacker's windows of each class (row); without any that of all."""
    softmax = attacked.output(attacked.start, own.x).logits.double().softmax(1)
    rows = [softmax[own.y == c] for c in range(attacked.classes)]
    found: NDArray[np.float64] = torch.stack([(row if len(row) else softmax).mean(0) for row in rows]).numpy()
    return found


def solved(
    difference: NDArray[np.float64], expected: NDArray[np.float64], average: Shares, deviation: float = 0.0
) -> Shares:
    """Return shares s with Σ_c (s_c − average_c) (p_c − e_c) = difference and Σ_c s_c = 1, by least squares.

    difference: a batch's gradient of the bias (C,) less that of all batches. expected: p (C, C). deviation: of the
    noise in each of these numbers: the solution is drawn to the average as far as noise explains it (W. James, C.
    Stein, 1961).
    """
    inverse = np.linalg.pinv(np.vstack([(expected - np.eye(len(expected))).T, np.ones(len(expected))]))
    found = inverse @ np.append(difference, 0.0)
    noise = deviation**2 * float((inverse[:, :-1] ** 2).sum())
    return as_shares(average + max(0.0, 1 - noise / max(1e-12, float(found @ found))) * found, average)
