"""The gradient of one batch of each device, as the server would see it: the least steps that a device can take."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from federation.records import Batch, Examples, Tensors
from federation.records.tree import select
from federation.seeds import generator
from sim.errors import AnalysisError
from sim.privacy_attacks.attacked_round import AttackedRound
from sim.privacy_attacks.observation import Disguise, Setting, Vector, observe

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
