"""Client-level differential privacy at the server: each change is clipped, their sum gets Gaussian noise.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018,
arXiv 1710.06963, algorithm 1, with flat clipping. In the neighbouring run one client's change is zero, as in
P. Kairouz, B. McMahan, S. Song, O. Thakkar, A. Thakurta, Z. Xu: Practical and Private (Deep) Learning without
Sampling or Shuffling, ICML 2021, arXiv 2103.00039; who takes part is not hidden.

With `rounds.noise_bands` the noise is correlated over rounds: what one round's adds
to the model, the next ones take away again in part.

Differs from the paper: the mean is over the clients that came instead of a fixed number, clients have equal weights,
and no amplification by sampling is claimed: the seed of the cohort's draw is in the plan, which every device has.

Correlated noise: C. Choquette-Choo, A. Ganesh, R. McKenna, H. B. McMahan, K. Rush, A. Thakurta, Z. Xu: (Amplified)
Banded Matrix Factorization: A unified approach to private training, NeurIPS 2023, arXiv 2306.08153. Models are prefix
sums of the rounds' changes, A x; released is A C⁻¹ (C x + z) with independent z, which is a Gaussian mechanism on C x.
C is lower triangular Toeplitz with `bands` bands: the first coefficients of (1 − x)^-½, whose square is A (H.
Fichtenberger, M. Henzinger, J. Upadhyay: Constant matters, ICML 2023, arXiv 2202.11205; cut off as in N. Kalinin, C.
Lampert: Banded Square Root Matrix Factorization, NeurIPS 2024, arXiv 2405.13763).

A client whose rounds are at least `bands` published rounds apart moves disjoint entries of C x: each of its rounds
counts as one Gaussian mechanism whose sensitivity is the norm of a column of C, whenever it comes and however often. So
the account is that of independent noise (`accounting.epsilon`), and `noise_multiplier` means the same.

Differs from these papers: the sum is divided by how many clients came, which differs from round to round, so that noise
of such rounds cancels a little less; privacy is not touched by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from federation.errors import SettingsError
from federation.method import Method
from federation.plan import RoundSettings, TrainingConfig
from federation.records import Tensors, Tree, Update


def check_private(method: Method, rounds: RoundSettings, training: TrainingConfig | None = None) -> None:
    """Refuse settings under which the noise, of people or (with `training`) of examples, would protect nothing.

    Raises:
        SettingsError: naming the option.
    """
    if training is not None and training.example_clip_norm is not None:
        check_mean(method, "training.example_clip_norm")
    if rounds.clip_norm is None:
        if rounds.noise_multiplier:
            raise SettingsError("rounds.noise_multiplier needs rounds.clip_norm: without a bound, no noise is enough")
        if rounds.noise_bands > 1:
            raise SettingsError(
                "rounds.noise_bands needs rounds.clip_norm and rounds.noise_multiplier: it is their noise"
            )
        return
    check_mean(method, "rounds.clip_norm")
    if rounds.late != "drop":
        raise SettingsError("rounds.clip_norm needs rounds.late=drop: a late change is not one of the present model")
    if rounds.noise_bands > 1 and not rounds.noise_multiplier:
        raise SettingsError(f"rounds.noise_bands={rounds.noise_bands} needs rounds.noise_multiplier above 0")
    if rounds.noise_bands > 1 and rounds.clients_per_round is None:
        raise SettingsError(
            f"rounds.noise_bands: a client takes part in one of {rounds.noise_bands} rounds at most, and "
            "without rounds.clients_per_round the first round invites all; set it to a share of the clients"
        )


def check_mean(method: Method, option: str) -> None:
    """Refuse methods whose server does more with a client's upload than to average its parameters.

    Raises:
        SettingsError: naming the option.
    """
    kind, plain = type(method), (Method.upload, Method.fold, Method.aggregate)
    combines_otherwise = (kind.upload, kind.fold, kind.aggregate) != plain or method.aggregation != "mean"
    if combines_otherwise or method.traits.personal_broadcast:
        raise SettingsError(
            f"{option}: {method.name} sends or combines more than a mean of parameters, whose sensitivity "
            "this does not bound; choose a method such as fedavg, fedprox, fedper or fedadam, with aggregation=mean"
        )


class Aggregated(NamedTuple):
    """A method's next state, and the noise that the next round leans on: secret, and empty where it leans on none."""

    state: Tree
    noise: Tensors


def aggregated(
    rounds: RoundSettings,
    method: Method,
    state: Tree,
    updates: Iterable[Update],
    draw: np.random.Generator,
    past: Mapping[str, torch.Tensor],
) -> Aggregated:
    """Return the next state of updates with clipped changes, equal weights and noise of deviation z·C in their sum.

    Without `clip_norm` the updates are as they came. `draw` must be secret where the result is published; `past` is the
    noise that came with the state: none where that is not the last published round's, but one gone back to.

    Raises:
        SettingsError: if the method does not take a mean of parameters.
    """
    check_private(method, rounds)
    if rounds.clip_norm is None:
        return Aggregated(method.aggregate(state, updates), {})
    start: Tensors = method.broadcast(state, "")["params"]
    bands = rounds.noise_bands
    deviation = rounds.noise_multiplier * rounds.clip_norm * sensitivity(bands)
    units, kept = next_noise(past, start, bands, draw) if deviation else ({}, {})
    added = {name: deviation * unit.double() for name, unit in units.items()}
    return Aggregated(method.aggregate(state, _private(rounds.clip_norm, start, updates, added)), kept)


def _private(clip_norm: float, start: Tensors, updates: Iterable[Update], noise: Tensors) -> Iterator[Update]:
    first = True
    for update in updates:
        params = clipped(update.tensors["params"], start, clip_norm)
        if first and noise:  # one of them carries the noise of the sum
            params = {name: value + noise[name] for name, value in params.items()}
        first = False
        yield update._replace(examples=1, discount=1.0, tensors={"params": params})


def clipped(params: Mapping[str, torch.Tensor], start: Tensors, clip_norm: float) -> Tensors:
    """Return start + Δ·min(1, C/‖Δ‖) in float64, Δ = params − start over all tensors together."""
    changes = {name: value.double() - start[name].double() for name, value in params.items()}
    norm = math.sqrt(sum(float(change.square().sum()) for change in changes.values()))
    scale = min(1.0, clip_norm / norm) if norm else 1.0
    return {name: start[name].double() + change * scale for name, change in changes.items()}


GROUP = "noise"
"""Of a state as a server keeps it: by parameter the units of noise (bands − 1, ...) of its rounds, newest first.

Nobody else may see them: whoever knows the noise has the sums without it. So methods never see them either, whose
broadcast may be the whole state.
"""


def coefficients(bands: int) -> list[float]:
    """Return c_0 … c_(bands−1) of C: c_k = (2k choose k) / 4^k."""
    found = [1.0]
    for k in range(1, bands):
        found.append(found[-1] * (2 * k - 1) / (2 * k))
    return found


def sensitivity(bands: int) -> float:
    """Return √Σ c², what one participation of a client with a change of norm 1 moves C x by at most."""
    return math.sqrt(sum(c * c for c in coefficients(bands)))


def taken_apart(kept: Tree) -> tuple[Tree, Tensors]:
    """Return a state as methods know it, and the noise that is kept with it."""
    return {group: tree for group, tree in kept.items() if group != GROUP}, kept.get(GROUP, {})


def put_together(state: Tree, noise: Tensors) -> Tree:
    """Return a state as a server keeps it."""
    return {**state, GROUP: noise} if noise else state


def next_noise(
    past: Mapping[str, Tensor], like: Mapping[str, Tensor], bands: int, draw: np.random.Generator
) -> tuple[Tensors, Tensors]:
    """Return this round's units of noise by parameter, row t of C⁻¹ z, and what the next round needs as its past.

    past: as the round before has returned it; of another number of bands it is none. Units are float32 where later
    rounds lean on them, as they are kept.
    """
    back = torch.tensor(coefficients(bands)[1:], dtype=torch.float64)
    units, kept = {}, {}
    for name, value in like.items():
        unit = torch.from_numpy(draw.standard_normal(tuple(value.shape)))
        if bands > 1:
            before = past.get(name, torch.zeros(0))
            if len(before) != bands - 1:
                before = torch.zeros((bands - 1, *unit.shape))
            unit = (unit - torch.tensordot(back, before.double(), dims=1)).float()
            kept[name] = torch.cat((unit[None], before))[: bands - 1]
        units[name] = unit
    return units, kept
