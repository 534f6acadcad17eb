"""Attack on how a person walks, sits or climbs stairs: mean features per activity, from analytic sums or prototypes.

A prototype is a mean of features. In analytic sums column c of B is Σ a / √n_c and its last row √n_c, so their quotient
is the mean; of a class with one window it is that window's features. So in clear nothing is left to attack.
What is counted is how a person differs from the others: 1 − Σ ‖guess − true‖² / Σ ‖average − true‖² over the classes
that the device has. 1: known exactly; 0: no better than the federation's average of each class.

An attacker that knows the noise does not believe all of it: its guess is drawn to the average as far as noise alone
explains how far they are apart (the positive part of W. James and C. Stein, Estimation with quadratic loss, 1961). A
class whose count is below three deviations of its noise is taken for unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sim.errors import AnalysisError
from sim.privacy_attacks.attacked_round import AttackedRound, Sent
from sim.privacy_attacks.observation import AttackOutcome, AttackResult, Seen, Setting

SCORE = "how much of what sets the device's mean features apart from the federation's is known: 1 is all, exactly"
CHANCE = "the federation's average of each class: 0 by this measure"
TRUSTED_DEVIATIONS = 3.0


def read_means(attacked: AttackedRound, settings: Sequence[Setting]) -> AttackResult:
    """Read each device's mean features by class.

    Raises:
        AnalysisError: if the method sends neither sums nor prototypes.
    """
    groups = attacked.setup.method.sum_groups
    if "moment" not in groups and "prototypes" not in groups:
        raise AnalysisError(f"{attacked.setup.method.name} sends no statistics of features, only parameters")
    everybody = Seen(np.sum([attacked.vectors[name] for name in attacked.devices], axis=0), tuple(attacked.devices))
    average = means_of(attacked.sent(everybody))
    true = {name: means_of(attacked.sent(Seen(attacked.vectors[name], (name,)))) for name in attacked.devices}
    sizes = [len(attacked.data.clients[name].train.y) for name in attacked.devices]
    facts = _span(attacked, sizes)
    outcomes: dict[str, AttackOutcome] = {}
    for setting in settings:
        guessed = {
            name: _believed(attacked, attacked.sent(view), setting, len(view.members), average)
            for name, view in attacked.seen(setting).items()
        }
        scores = {name: known(guessed[name], truth, average) for name, truth in true.items()}
        outcomes[setting.key] = AttackOutcome(scores, dict.fromkeys(scores, 0.0), facts)
    text = (
        "The mean of the features of each activity, as a person does it. They are what the method sends: prototypes as "
        "they are, B as sums."
    )
    if facts:
        text += (
            f" {facts['fewer_windows_than_features']} of {len(sizes)} devices have fewer windows than G has rows "
            f"({facts['features']}): the eigenvectors of their G span their windows' features exactly."
        )
    return AttackResult("features", "How a person moves: means of features", text, SCORE, CHANCE, outcomes)


def _span(attacked: AttackedRound, sizes: Sequence[int]) -> dict[str, int]:
    if "gram" not in attacked.setup.method.sum_groups:
        return {}
    size = attacked.setup.training.feature_dim + 1
    return {"features": size, "fewer_windows_than_features": sum(count < size for count in sizes)}


def means_of(sent: Sent) -> Tensor:
    """Return mean features (C, D) by class, NaN of a class that nobody has; where noise hides a count, 0."""
    if sent.prototypes is not None:
        return sent.prototypes
    if sent.moment is None:
        raise AnalysisError("neither prototypes nor sums were sent")
    counts = sent.moment[-1]
    means = sent.moment[:-1] / torch.where(counts > 0, counts, torch.nan)
    return means.T


def known(guess: Tensor, true: Tensor, average: Tensor) -> float:
    """Return 1 − Σ ‖guess − true‖² / Σ ‖average − true‖² over the classes that there are."""
    has = ~true.isnan().any(1) & ~average.isnan().any(1)
    tried = torch.where(guess.isnan(), average, guess)
    missed = float((tried - true)[has].square().sum())
    apart = float((average - true)[has].square().sum())
    return 1 - missed / apart if apart > 0 else 0.0


def _believed(attacked: AttackedRound, sent: Sent, setting: Setting, members: int, average: Tensor) -> Tensor:
    """Return the means (C, D) that an attacker guesses of what it sees, who knows how much noise there is."""
    guess, disguise = means_of(sent), attacked.disguise(setting)
    counts = sent.counts if sent.counts is not None else None if sent.moment is None else sent.moment[-1]
    if disguise is None or counts is None:
        return guess
    steps = {segment.name: segment.steps for segment in attacked.layout.segments}
    deviation = disguise.deviation / members**0.5
    of_total, of_count = (deviation / steps.get(name, 1) for name in ("prototypes", "counts"))
    noise = (guess.shape[1] * of_total**2 + guess.square().sum(1) * of_count**2) / counts**2
    share = (1 - noise / (guess - average).square().sum(1)).clamp(min=0)
    share = torch.where(counts > TRUSTED_DEVIATIONS * of_count, share, 0.0).nan_to_num(nan=0.0)
    return torch.where(guess.isnan(), average, average + share[:, None] * (guess - average))
