"""Client-level differential privacy at the server: each change is clipped, their sum gets Gaussian noise.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018,
arXiv 1710.06963, algorithm 1, with flat clipping. In the neighbouring run one client's change is zero, as in
P. Kairouz, B. McMahan, S. Song, O. Thakkar, A. Thakurta, Z. Xu: Practical and Private (Deep) Learning without
Sampling or Shuffling, ICML 2021, arXiv 2103.00039; who takes part is not hidden.

With `rounds.noise_bands` the noise is correlated over rounds (see `correlated_noise`).

Differs from the paper: the mean is over the clients that came instead of a fixed number, clients have equal weights,
and no amplification by sampling is claimed: the seed of the cohort's draw is in the plan, which every device has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch

from federation.errors import SettingsError
from federation.method import Method
from federation.plan import RoundSettings
from federation.privacy import correlated_noise
from federation.records import Tensors, Tree, Update


def check_private(method: Method, rounds: RoundSettings) -> None:
    """Refuse settings under which the noise would protect nothing.

    Raises:
        SettingsError: naming the option.
    """
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
    deviation = rounds.noise_multiplier * rounds.clip_norm * correlated_noise.sensitivity(bands)
    units, kept = correlated_noise.next_noise(past, start, bands, draw) if deviation else ({}, {})
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
