"""Windows of motion sensors changed at random: turned as if the phone lay otherwise, or without the gyroscope.

What is changed is what was measured, in m/s² and rad/s: normalized windows are scaled back before, and normalized again
after it. A device without a gyroscope reads 0 rad/s. One rotation turns a window's both sensors. Rotations are uniform
over all there are (K. Shoemake, Uniform Random Rotations, Graphics Gems III, 1992), or small ones: about any axis, by
an angle up to so many degrees, as a phone lies a little otherwise in another pocket. Each is a pure function of three
draws from 0 to 1, and turns by products and sums that are rounded one by one, so that every engine and device has the
same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from federation.errors import SettingsError
from federation.plan import Augmentation
from federation.training.schedule import ROTATION_DRAWS, WINDOW_DRAWS
from federation.training.window_copies import AXES, rotations_of, turned

CHANNELS = 2 * AXES


class ChannelScale(NamedTuple):
    """Mean and standard deviation (6,) by which windows were normalized."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64]) -> ChannelScale:
        """Take arrays (6,)."""
        return cls(tuple(mean.tolist()), tuple(std.tolist()))


def check_windows(x: Tensor) -> None:
    """Refuse examples (..., T, 6) that are no windows of an accelerometer and a gyroscope.

    Raises:
        SettingsError: saying what came.
    """
    if x.dim() < 2 or x.shape[-1] != CHANNELS or not x.is_floating_point():
        raise SettingsError(
            f"rotation and sensor_loss: they are for windows of motion sensors (samples, {CHANNELS}), the examples "
            f"here are of shape {tuple(x.shape[1:])}; leave them out"
        )


def changed_windows(
    change: Augmentation, draws: npt.NDArray[np.float32], x: Tensor, scale: ChannelScale | None = None
) -> Tensor:
    """Change a share of the windows x (..., T, 6), normalized by `scale` or raw, by draws (..., WINDOW_DRAWS or more).

    Raises:
        SettingsError: for examples that are no such windows.
    """
    check_windows(x)
    if change.rotation:
        x = rotated_at_random(change, draws, x, scale)
    if change.sensor_loss:
        lost = torch.from_numpy(draws[..., WINDOW_DRAWS - 1] < change.sensor_loss).to(x.device)
        x = torch.where(lost[..., None, None], without_gyroscope(x, scale), x)
    return x


def without_gyroscope(x: Tensor, scale: ChannelScale | None = None) -> Tensor:
    """Return windows x (..., T, 6), normalized by `scale` or raw, as of a device whose gyroscope reads nothing."""
    nothing = x.new_zeros(AXES) if scale is None else -x.new_tensor(scale.mean[AXES:]) / x.new_tensor(scale.std[AXES:])
    return torch.cat([x[..., :AXES], nothing.expand_as(x[..., AXES:])], -1)


def rotated(x: Tensor, matrices: Tensor, scale: ChannelScale | None = None) -> Tensor:
    """Turn windows x (..., T, 6), normalized by `scale` or raw, by rotations (..., 3, 3) that broadcast to them."""
    matrices = matrices.to(x)
    if scale is None:
        return torch.cat([turned(part, matrices) for part in torch.split(x, AXES, -1)], -1)
    mean, std = (x.new_tensor(values) for values in scale)
    return (rotated(x * std + mean, matrices) - mean) / std


def rotated_at_random(
    change: Augmentation, draws: npt.NDArray[np.float32], x: Tensor, scale: ChannelScale | None = None
) -> Tensor:
    """Turn a share of the windows x (..., T, 6) by draws (..., ROTATION_DRAWS or more)."""
    matrices = torch.from_numpy(rotations_of(draws[..., 1:ROTATION_DRAWS], change.degrees)).to(x.device)
    chosen = torch.from_numpy(draws[..., 0] < change.rotation).to(x.device)
    return torch.where(chosen[..., None, None], rotated(x, matrices, scale), x)
