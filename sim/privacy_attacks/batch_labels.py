"""Which activities one batch was of, by the gradient of the last layer's bias: linear equations for counts of classes.

Of a batch of B windows with n_c of class c, B g = Σ_c n_c (p_c − e_c), where g is the bias's gradient and p_c the mean
softmax of class c. A. Wainakh et al.: User-Level Label Leakage from Gradients in Federated Learning (LLG*), PoPETs
2022, arXiv 2105.09369; K. Ma et al.: Instance-wise Batch Label Restoration via Gradients (iLRG), ICLR 2023. Differs
from the papers: p_c is measured on windows that the attacker has, and all counts are solved at once by least squares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from federation.records import Examples
from sim.errors import AnalysisError
from sim.privacy_attacks.attacked_round import AttackedRound, shares_of
from sim.privacy_attacks.attacker import CHANCE, SCORE, Shares, as_shares, auxiliary, halves, judged, last_layer
from sim.privacy_attacks.gradients import batch_of, deviation_seen, gradient_at, mean_seen, travelling, unflat, whole
from sim.privacy_attacks.observation import Setting
from sim.privacy_attacks.outcome import AttackOutcome, AttackResult

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
