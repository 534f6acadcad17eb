"""Random augmentation of images in training: flips, scaling, shifts, color changes; a mask moves with its image.

What is done to an example is a pure function of (seed, client, round, epoch, its place in the epoch's order): the
draws lie in the `Schedule`, so every engine and device makes the same images, and so does a resumed round. Pixels
are gathered by whole numbers and mixed by exactly rounded products and sums: the same bits in any batch.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from federation.errors import SettingsError
from federation.plan import Augmentation
from federation.training.schedule import DRAWS

Floats = npt.NDArray[np.float64]


class Between(NamedTuple):
    """The two rows, or columns, that each one of a scaled image lies between."""

    lower: Tensor  # (N, S) int64
    upper: Tensor  # (N, S) int64
    weight: Tensor  # (N, S) float32 of `upper`


class Axis(NamedTuple):
    """Where each row, or column, of N images of that many (S) comes from in the image before."""

    nearest: Tensor  # (N, S) int64
    inside: Tensor  # (N, S) bool: the image before reaches so far
    between: Between | None  # None where nothing is scaled: a pixel is one pixel of before


class Changes(NamedTuple):
    """What is done to N images."""

    rows: Axis
    columns: Axis
    colours: Tensor | None  # (N, 3) float32: what is added to it, its contrast and saturation; None: as they are


def check_images(augmentation: Augmentation, x: Tensor) -> None:
    """Refuse examples (..., C, H, W) that are no images.

    Raises:
        SettingsError: if anything would have to be augmented.
    """
    if augmentation.is_of_images and x.dim() < 4:
        raise SettingsError(
            f"augmentation = {augmentation}: it is for images (channels, height, width), the examples here are of "
            f"shape {tuple(x.shape[1:])}; leave it out"
        )


def augmented(
    augmentation: Augmentation, draws: npt.NDArray[np.float32], x: Tensor, y: Tensor, outside: int | None
) -> tuple[Tensor, Tensor]:
    """Change images x (..., C, H, W), as a network takes them, by draws (..., DRAWS).

    `outside` is the target of what an image does not reach, where targets y (..., H, W) lie as the images do; None
    where they stay as they are.

    Raises:
        SettingsError: for masks of another size than their images'.
    """
    size = x.shape[-2:]
    if outside is not None and y.shape[-2:] != size:
        raise SettingsError(
            f"augmentation moves masks with their images: masks of {tuple(y.shape[-2:])} do not fit images of "
            f"{tuple(size)}; prepare them in one size, or leave augmentation out"
        )
    leading = x.shape[:-3]
    found = changes(augmentation, draws.reshape(-1, DRAWS), size[0], size[1], x.device)
    images = changed_images(found, x.reshape(-1, *x.shape[-3:]))
    if outside is not None:
        y = changed_masks(found, y.reshape(-1, *size), outside).view(*leading, *size)
    return images.view(*leading, *x.shape[-3:]), y


def changes(
    augmentation: Augmentation, draws: npt.NDArray[np.float32], height: int, width: int, device: torch.device
) -> Changes:
    """Say what draws (N, DRAWS) do to images of that size; computed in float64 on the host, wherever they lie."""
    flip, scale, row, column = draws[:, :4].T.astype(np.float64)
    smallest, largest = augmentation.scale
    factor = smallest + scale * (largest - smallest)
    unmoved = augmentation.scale == (1, 1)
    rows = _line(row, factor, height, augmentation.padding, np.zeros(len(draws), bool))
    columns = _line(column, factor, width, augmentation.padding, flip < augmentation.flip)
    down, across = (_axis(place, side, unmoved, device) for place, side in ((rows, height), (columns, width)))
    most = np.array([augmentation.brightness, augmentation.contrast, augmentation.saturation])
    colours = np.array([0, 1, 1]) + most * (2 * draws[:, 4:].astype(np.float64) - 1)
    return Changes(down, across, torch.from_numpy(colours.astype(np.float32)).to(device) if most.any() else None)


def _line(draw: Floats, scale: Floats, side: int, padding: int, flipped: npt.NDArray[np.bool_]) -> Floats:
    """Take a window of `side` pixels, at a drawn place, of a line scaled and then padded at both ends.

    Returns where the middle of each pixel (N, side) lay, in pixels of before.
    """
    room = (scale - 1) * side
    first = np.ceil(np.minimum(room, 0)) - padding
    last = np.floor(np.maximum(room, 0)) + padding
    start = first + np.floor(draw * (last - first + 1))
    pixel = np.where(flipped[:, None], np.arange(side)[::-1], np.arange(side))
    place: Floats = (start[:, None] + pixel + 0.5) / scale[:, None]
    return place


def _axis(place: Floats, side: int, unmoved: bool, device: torch.device) -> Axis:
    between = np.clip(place - 0.5, 0, side - 1)
    lower = np.floor(between).astype(np.int64)
    mixed = (lower, np.minimum(lower + 1, side - 1), (between - lower).astype(np.float32))
    nearest, inside = np.clip(np.floor(place), 0, side - 1).astype(np.int64), (place >= 0) & (place < side)
    return Axis(
        torch.from_numpy(nearest).to(device),
        torch.from_numpy(inside).to(device),
        None if unmoved else Between(*(torch.from_numpy(part).to(device) for part in mixed)),
    )


def changed_images(changes: Changes, x: Tensor) -> Tensor:
    """Change images (N, C, H, W): bilinear, 0 (the mean colour, once normalized) where they do not reach."""
    for axis, taken, across in ((changes.rows, _rows, 3), (changes.columns, _columns, 2)):
        if axis.between is None:
            x = taken(x, axis.nearest)
            continue
        lower, upper, weight = axis.between
        share, before = weight.to(x.dtype)[:, None].unsqueeze(across), taken(x, lower)
        x = before + (taken(x, upper) - before) * share  # not torch.lerp, whose roundings depend on the weight
    if changes.colours is not None:
        added, contrast, saturation = (part[:, None, None, None] for part in changes.colours.to(x.dtype).unbind(1))
        x = x * contrast + added
        grey = reduce(torch.add, x.unbind(1)).unsqueeze(1) / x.shape[1]  # in the channels' order, in any batch
        x = grey + (x - grey) * saturation
    return torch.where(_reached(changes), x, 0)


def changed_masks(changes: Changes, y: Tensor, outside: int) -> Tensor:
    """Change masks (N, H, W) as the images: the nearest pixel's class, `outside` where they do not reach."""
    moved = _columns(_rows(y[:, None], changes.rows.nearest), changes.columns.nearest)
    return torch.where(_reached(changes), moved, outside)[:, 0]


def _reached(changes: Changes) -> Tensor:
    return changes.rows.inside[:, None, :, None] & changes.columns.inside[:, None, None, :]


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Take rows (N, S) of images (N, C, H, W): whole ones, which is five times as fast as `gather`."""
    count, channels, height, width = x.shape
    first = torch.arange(0, count * channels * height, height, device=x.device).view(count, channels, 1)
    return x.reshape(-1, width).index_select(0, (first + index[:, None]).flatten()).view(count, channels, -1, width)


def _columns(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(3, index[:, None, None].expand(*x.shape[:3], -1))
