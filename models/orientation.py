"""How far gravity lies from where it is usual in a federation: a warning sign that a phone is carried otherwise.

The mean acceleration of a window is the direction of gravity and the bias of the sensor. How its three numbers are
spread over everybody's windows is in the sums that devices exchange (`feature_moments` of
`federation.aggregation.ridge`): what is usual is not the same in pockets and on belts. A device is as far as its mean
is from everybody's, in everybody's deviations (P. C. Mahalanobis, 1936).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.har_features import CLIP

AXES = 3
FAR = 1.0
"""Deviations, root mean square over the three axes. docs/edge_agent.md, 'Heads', has how often it is right."""
MIN_VARIANCE = 0.05
"""Added to everybody's variance on each axis: where all lie alike, a few degrees are not far."""


def gravity_columns(module: nn.Module) -> tuple[int, ...]:
    """Return which features of a network are the means of the acceleration's three axes; none where it says none."""
    return tuple(getattr(module, "gravity_columns", ()))


def gravity_distance(module: nn.Module, x: Tensor, mean: Tensor, covariance: Tensor) -> float | None:
    """Measure how far gravity on raw windows x (n, window, 6) lies from everybody's mean (3,), in their deviations.

    None where there is no window.
    """
    if not len(x):
        return None
    level, columns = x[..., :AXES].double().mean(1), torch.tensor(gravity_columns(module))
    squashed = torch.sign(level) * torch.log1p(level.abs())
    usual, deviation = module.get_buffer("feature_mean")[columns], module.get_buffer("feature_std")[columns]
    features = ((squashed - usual) / deviation).clamp(-CLIP, CLIP)
    away = features.mean(0) - mean
    scale = covariance + MIN_VARIANCE * torch.eye(AXES, dtype=torch.float64)
    return float((away @ torch.linalg.solve(scale, away) / AXES).clamp(min=0).sqrt())
