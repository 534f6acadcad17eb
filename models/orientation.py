"""Where gravity lies on a device, as features say it: a warning sign that a phone is carried otherwise.

The mean acceleration of a window is the direction of gravity and the bias of the sensor. How its three numbers are
spread over everybody's windows is in the sums that devices exchange (`feature_moments` of
`federation.aggregation.ridge_numpy`): what is usual is not the same in pockets and on belts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.har_features import CLIP

AXES = 3


def gravity_columns(module: nn.Module) -> tuple[int, ...]:
    """Return which features of a network are the means of the acceleration's three axes; none where it says none."""
    return tuple(getattr(module, "gravity_columns", ()))


def mean_gravity(module: nn.Module, x: Tensor) -> Tensor:
    """Return the mean (3,), in float64, of these features of raw windows x (n, window, 6), n > 0."""
    level, columns = x[..., :AXES].double().mean(1), torch.tensor(gravity_columns(module))
    squashed = torch.sign(level) * torch.log1p(level.abs())
    usual, deviation = module.get_buffer("feature_mean")[columns], module.get_buffer("feature_std")[columns]
    return ((squashed - usual) / deviation).clamp(-CLIP, CLIP).mean(0)
