"""How far gravity lies from where it is usual: a warning sign that a phone is carried otherwise, no more.

The mean acceleration of a window is the direction of gravity and the bias of the sensor. Its three numbers,
standardized by the constants that ship with `har_features`, are near 0 where a device lies as most do in the public
sets from which the constants are. The distributions overlap widely: many ways to carry a phone are in them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

AXES = 3
FAR = 1.0
"""Root mean square, over the three axes, of the standardized mean of the windows. docs/edge_agent.md, 'Heads': on
MotionSense it finds every phone that is upside down, of all of its windows, and is wrong about none of the others."""


def gravity_distance(module: nn.Module, x: Tensor) -> float | None:
    """Measure, in deviations, how far gravity lies from a network's constants on raw windows x (n, window, 6).

    None where there is no window, or the network does not say what is usual.
    """
    columns = getattr(module, "gravity_columns", None)
    if columns is None or not len(x):
        return None
    mean = x[..., :AXES].double().mean(1)
    squashed = torch.sign(mean) * torch.log1p(mean.abs())
    index = torch.tensor(columns)
    usual, deviation = module.get_buffer("feature_mean")[index], module.get_buffer("feature_std")[index]
    standard = ((squashed - usual) / deviation).mean(0)
    return float((standard**2).mean().sqrt())
