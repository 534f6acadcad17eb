"""Copies of a client's windows that its sums have besides them: turned at random, and without the gyroscope.

Without torch, for windows as they were measured, in m/s² and rad/s: what `federation.training.local_round` sums over
by `federation.training.window_changes`, whose rotations are made here, with the same draws
(`federation.training.schedule.with_copies`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from federation.training.schedule import ROTATION_DRAWS, in_order, with_copies

AXES = 3
ANY = 180.0
"""Degrees: by no more than these is by any rotation."""
Numbers = npt.NDArray[np.float64]
Windows = npt.NDArray[np.float32]


def window_copies(
    x: Windows, seed: int, client_id: str, *, rotations: int = 0, degrees: float = ANY, sensor_loss: bool = False
) -> Iterator[Windows]:
    """Return the copies of windows x (n, T, 6), raw, one after the other, each (n, T, 6); of no windows none."""
    drawn = with_copies(in_order(len(x), max(1, len(x))), rotations, seed, client_id, sensor_loss=sensor_loss).draws
    if drawn is None or not len(x):
        return
    for draws in drawn[1 : 1 + rotations, 0]:
        matrices = rotations_of(draws[:, 1:ROTATION_DRAWS], degrees)
        yield np.concatenate([turned(x[..., :AXES], matrices), turned(x[..., AXES:], matrices)], -1)
    if sensor_loss:
        yield np.concatenate([x[..., :AXES], np.zeros_like(x[..., AXES:])], -1)


def rotations_of(draws: npt.NDArray[np.floating], degrees: float = ANY) -> Windows:
    """Return the rotations (..., 3, 3) of draws (..., 3), by no more than so many degrees, by unit quaternions."""
    first, second, third = np.moveaxis(np.asarray(draws, np.float64), -1, 0)
    x, y, z, w = _any_rotation(first, second, third) if degrees >= ANY else _small(first, second, third, degrees)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2).astype(np.float32)


def _any_rotation(first: Numbers, second: Numbers, third: Numbers) -> tuple[Numbers, ...]:
    inner, outer = np.sqrt(1 - first), np.sqrt(first)
    one, other = 2 * np.pi * second, 2 * np.pi * third
    return inner * np.sin(one), inner * np.cos(one), outer * np.sin(other), outer * np.cos(other)


def _small(first: Numbers, second: Numbers, third: Numbers, degrees: float) -> tuple[Numbers, ...]:
    height, half = 2 * first - 1, np.deg2rad(degrees) * third / 2
    across, around = np.sqrt(1 - height**2) * np.sin(half), 2 * np.pi * second
    return across * np.cos(around), across * np.sin(around), height * np.sin(half), np.cos(half)


def turned(vectors: Any, matrices: Any) -> Any:
    """Turn vectors (..., T, 3) by matrices (..., 3, 3); both are numpy's, or both torch's."""
    # one product after the other: a matrix product rounds by the size of the batch
    a, b, c = (vectors[..., axis : axis + 1] * matrices[..., None, :, axis] for axis in range(AXES))
    return a + b + c
