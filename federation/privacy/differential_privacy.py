"""Client-level differential privacy at the server: each change is clipped, their sum gets Gaussian noise.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018,
arXiv 1710.06963, algorithm 1, with flat clipping. In the neighbouring run one client's change is zero, as in
P. Kairouz, B. McMahan, S. Song, O. Thakkar, A. Thakurta, Z. Xu: Practical and Private (Deep) Learning without
Sampling or Shuffling, ICML 2021, arXiv 2103.00039; who takes part is not hidden.

Differs from the paper: the mean is over the clients that came instead of a fixed number, clients have equal weights,
and no amplification by sampling is claimed: the seed of the cohort's draw is in the plan, which every device has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from federation.errors import SettingsError
from federation.method import Method
from federation.plan import RoundSettings
from federation.records import Tensors, Tree, Update


def check_private(method: Method, rounds: RoundSettings) -> None:
    """Refuse settings under which the noise would protect nothing.

    Raises:
        SettingsError: naming the option.
    """
    if rounds.clip_norm is None:
        if rounds.noise_multiplier:
            raise SettingsError("rounds.noise_multiplier needs rounds.clip_norm: without a bound, no noise is enough")
        return
    kind, plain = type(method), (Method.upload, Method.fold, Method.aggregate)
    if (kind.upload, kind.fold, kind.aggregate) != plain or method.aggregation != "mean" or method.personal_broadcast:
        raise SettingsError(
            f"rounds.clip_norm: {method.name} sends or combines more than a mean of parameters, whose sensitivity "
            "this does not bound; choose a method such as fedavg, fedprox, fedper or fedadam, with aggregation=mean"
        )
    if rounds.late != "drop":
        raise SettingsError("rounds.clip_norm needs rounds.late=drop: a late change is not one of the present model")


def privatized(
    rounds: RoundSettings, method: Method, state: Tree, updates: Iterable[Update], noise: np.random.Generator
) -> Iterable[Update]:
    """Return the updates with clipped changes, equal weights and noise of deviation z·C in their sum.

    Without `clip_norm` they are as they came. `noise` must be secret where the result is published.

    Raises:
        SettingsError: if the method does not take a mean of parameters.
    """
    check_private(method, rounds)
    if rounds.clip_norm is None:
        return updates
    return _private(rounds.clip_norm, rounds.noise_multiplier, method.broadcast(state, "")["params"], updates, noise)


def _private(
    clip_norm: float, multiplier: float, start: Tensors, updates: Iterable[Update], noise: np.random.Generator
) -> Iterator[Update]:
    first = True
    for update in updates:
        params = clipped(update.tensors["params"], start, clip_norm)
        if first and multiplier:  # one of them carries the noise of the sum
            params = {name: value + _gaussian(value, multiplier * clip_norm, noise) for name, value in params.items()}
        first = False
        yield update._replace(examples=1, discount=1.0, tensors={"params": params})


def clipped(params: Mapping[str, torch.Tensor], start: Tensors, clip_norm: float) -> Tensors:
    """Return start + Δ·min(1, C/‖Δ‖) in float64, Δ = params − start over all tensors together."""
    changes = {name: value.double() - start[name].double() for name, value in params.items()}
    norm = math.sqrt(sum(float(change.square().sum()) for change in changes.values()))
    scale = min(1.0, clip_norm / norm) if norm else 1.0
    return {name: start[name].double() + change * scale for name, change in changes.items()}


def _gaussian(like: torch.Tensor, deviation: float, noise: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(noise.normal(0.0, deviation, tuple(like.shape)))
