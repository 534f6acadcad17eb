"""Random changes of windows: rotated as if the phone had another orientation, or without the gyroscope.

What is changed is what was measured, in m/s² and rad/s: normalized windows are scaled back before, and normalized again
after it. A device without a gyroscope reads 0 rad/s. One rotation turns a window's both sensors. Rotations are uniform
over all there are (K. Shoemake, Uniform Random Rotations, Graphics Gems III, 1992), or small ones: about any axis, by
an angle up to so many degrees, as a phone lies a little otherwise in another pocket. Each is a pure function of three
draws from 0 to 1, and turns by products and sums that are rounded one by one, so that every engine and device has the
same bits.

Windows are torch's or numpy's: devices without torch change theirs here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from federation.errors import SettingsError
from federation.plan import Augmentation
from federation.training.schedule import ROTATION_DRAWS, WINDOW_DRAWS, WindowCopies, in_order, with_copies

AXES = 3
CHANNELS = 2 * AXES
ANY = 180.0
"""Degrees: by no more than these is by any rotation."""
Numbers = npt.NDArray[np.float64]
Draws = npt.NDArray[np.floating]
Windows = Any
"""A torch.Tensor or an array of numpy's, as it was given."""


class ChannelScale(NamedTuple):
    """Mean and standard deviation (6,) by which windows were normalized."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, mean: npt.NDArray[np.floating], std: npt.NDArray[np.floating]) -> ChannelScale:
        """Take arrays (6,)."""
        return cls(tuple(mean.tolist()), tuple(std.tolist()))


class _Library(NamedTuple):
    """What differs between torch and numpy here."""

    concatenate: Callable[..., Any]
    where: Callable[..., Any]
    is_floating_point: Callable[[Any], bool]
    like: Callable[[Any, Any], Any]  # numbers as those of an array: of its type, in its memory
    mask: Callable[[npt.NDArray[np.bool_], Any], Any]  # in its memory


def _library(x: Windows) -> _Library:
    if isinstance(x, np.ndarray):
        return _NUMPY
    import torch  # devices may have none

    return _Library(
        torch.cat,
        torch.where,
        torch.is_floating_point,
        lambda values, x: torch.as_tensor(values, dtype=x.dtype, device=x.device),
        lambda mask, x: torch.as_tensor(mask, device=x.device),
    )


_NUMPY = _Library(
    np.concatenate,
    np.where,
    lambda x: np.issubdtype(x.dtype, np.floating),
    lambda values, x: np.asarray(values, x.dtype),
    lambda mask, x: mask,
)


def check_windows(x: Windows) -> None:
    """Refuse examples (..., T, 6) that are no windows of an accelerometer and a gyroscope.

    Raises:
        SettingsError: saying what came.
    """
    if x.ndim < 2 or x.shape[-1] != CHANNELS or not _library(x).is_floating_point(x):
        raise SettingsError(
            f"rotation and sensor_loss: they are for windows of motion sensors (samples, {CHANNELS}), the examples "
            f"here are of shape {tuple(x.shape[1:])}; leave them out"
        )


def changed_windows(change: Augmentation, draws: Draws, x: Windows, scale: ChannelScale | None = None) -> Windows:
    """Change a share of the windows x (..., T, 6), normalized by `scale` or raw, by draws (..., WINDOW_DRAWS or more).

    Raises:
        SettingsError: for examples that are no such windows.
    """
    check_windows(x)
    where, mask = _library(x).where, _library(x).mask
    if change.rotation:
        chosen = mask(draws[..., 0] < change.rotation, x)
        matrices = rotations(draws[..., 1:ROTATION_DRAWS], change.degrees)
        x = where(chosen[..., None, None], rotated(x, matrices, scale), x)
    if change.sensor_loss:
        lost = mask(draws[..., WINDOW_DRAWS - 1] < change.sensor_loss, x)
        x = where(lost[..., None, None], without_gyroscope(x, scale), x)
    return x


def lacks_gyroscope(x: Windows) -> bool:
    """Say whether windows x (n, T, 6), raw, are of a device without a gyroscope; of no windows nobody can tell."""
    return x.ndim == 3 and x.shape[-1] == CHANNELS and len(x) > 0 and not bool((x[..., AXES:] != 0).any())


def window_copies(
    x: npt.NDArray[np.float32],
    seed: int,
    client_id: str,
    copies: WindowCopies,
) -> Iterator[npt.NDArray[np.float32]]:
    """Return the copies of windows x (n, T, 6), raw, that a client's sums have besides them; of no windows none.

    They are those that `federation.training.local_round` sums over: first the turned ones, each (n, T, 6).
    """
    drawn = with_copies(in_order(len(x), max(1, len(x))), copies, seed, client_id).draws
    if drawn is None or not len(x):
        return
    for draws in drawn[1:, 0]:
        yield changed_windows(Augmentation(rotation=1, degrees=copies.degrees, sensor_loss=1), draws, x)


def rotations(draws: Draws, degrees: float = ANY) -> npt.NDArray[np.float32]:
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
    alpha, beta = 2 * np.pi * second, 2 * np.pi * third
    return inner * np.sin(alpha), inner * np.cos(alpha), outer * np.sin(beta), outer * np.cos(beta)


def _small(first: Numbers, second: Numbers, third: Numbers, degrees: float) -> tuple[Numbers, ...]:
    height, half = 2 * first - 1, np.deg2rad(degrees) * third / 2
    across, around = np.sqrt(1 - height**2) * np.sin(half), 2 * np.pi * second
    return across * np.cos(around), across * np.sin(around), height * np.sin(half), np.cos(half)


def rotated(x: Windows, matrices: Any, scale: ChannelScale | None = None) -> Windows:
    """Turn windows x (..., T, 6), normalized by `scale` or raw, by rotations (..., 3, 3) that broadcast to them."""
    library = _library(x)
    matrices = library.like(matrices, x)
    if scale is None:
        return library.concatenate([_turned(x[..., :AXES], matrices), _turned(x[..., AXES:], matrices)], -1)
    mean, std = (library.like(values, x) for values in scale)
    return (rotated(x * std + mean, matrices) - mean) / std


def _turned(vectors: Any, matrices: Any) -> Any:
    # one product after the other: a matrix product rounds by the size of the batch
    a, b, c = (vectors[..., axis : axis + 1] * matrices[..., None, :, axis] for axis in range(AXES))
    return a + b + c


def without_gyroscope(x: Windows, scale: ChannelScale | None = None) -> Windows:
    """Return windows x (..., T, 6), normalized by `scale` or raw, as of a device whose gyroscope reads nothing."""
    library = _library(x)
    mean, std = (library.like(values[AXES:], x) for values in scale or ((0.0,) * CHANNELS, (1.0,) * CHANNELS))
    kept = x[..., :AXES]
    return library.concatenate([kept, 0 * kept + (0 - mean) / std], -1)
