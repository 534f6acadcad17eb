"""Whether a device lies as those lay whose windows the shared head has learnt from: a warning sign, no more.

The mean acceleration of a window is the direction of gravity and the bias of the sensor. Its three numbers,
standardized by the constants that ship with `har_features`, are near 0 where a device lies as most do in the public
sets from which the constants are. The distributions overlap widely: many ways to carry a phone are in them.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import torch
from torch import nn

from edge_agent.training.local_data import LocalData

AXES = 3
FAR = 1.0
"""Root mean square, over the three axes, of the standardized mean of the windows. docs/edge_agent.md, 'Heads': on
MotionSense it finds every phone that is upside down, of all of its windows, and is wrong about none of the others."""


class Orientation(NamedTuple):
    """How far gravity lies from what is usual, in deviations; None: the network does not say what is."""

    distance: float | None

    @property
    def is_far(self) -> bool:
        """Whether a head that does not know the axes is the safer one."""
        return self.distance is not None and self.distance > FAR

    def to_json(self) -> bytes:
        """Write it as a file has it."""
        return json.dumps({"distance": self.distance, "is_far": self.is_far}).encode()


def orientation_of(module: nn.Module, data: LocalData) -> Orientation:
    """Measure how far gravity lies from the constants of a network, on all windows (n, window, 6) of a device."""
    columns = getattr(module, "gravity_columns", None)
    if columns is None or not len(data.train):
        return Orientation(None)
    mean = torch.from_numpy(data.train.x[..., :AXES]).double().mean(1)
    squashed = torch.sign(mean) * torch.log1p(mean.abs())
    index = torch.tensor(columns)
    usual, deviation = module.get_buffer("feature_mean")[index], module.get_buffer("feature_std")[index]
    standard = ((squashed - usual) / deviation).mean(0)
    return Orientation(float((standard**2).mean().sqrt()))
