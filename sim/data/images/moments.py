"""From bytes to what a network sees: (x / 255 − mean) / std by channel, with constants of each data set."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CHUNK = 4096


class Moments(NamedTuple):
    """Mean and standard deviation of each channel, of pixels between 0 and 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


# Moments of the training images; the first two are those of PyTorch's examples, and a test computes them again.
MNIST = Moments((0.1307,), (0.3081,))
FASHION_MNIST = Moments((0.2860,), (0.3530,))
# Of all of EMNIST, as is usual for its parts.
EMNIST = Moments((0.1722,), (0.3309,))
# Pooled over images and pixels; the widespread std (0.2023, …) for CIFAR-10 is a mean of per-image deviations.
CIFAR10 = Moments((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = Moments((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
# To [−1, 1], where no constants are established (CelebA, FEMNIST by LEAF, folders of images).
GREY_TO_ONE = Moments((0.5,), (0.5,))
COLOUR_TO_ONE = Moments((0.5,) * 3, (0.5,) * 3)


def normalized(x: npt.NDArray[np.uint8], moments: Moments) -> npt.NDArray[np.float32]:
    """Normalize images (n, C, H, W); what is allocated besides the result is 16 kB a pixel and channel at most."""
    out = np.empty(x.shape, dtype=np.float32)
    # one multiplication and one subtraction in float32: (x/255 − m)/s = x·a − b
    scale, shift = (v.reshape(-1, 1, 1) for v in _affine(moments))
    for start in range(0, len(x), CHUNK):
        part = out[start : start + CHUNK]
        np.multiply(x[start : start + CHUNK], scale, out=part)
        part -= shift
    return out


def _affine(moments: Moments) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    mean, std = np.array(moments.mean), np.array(moments.std)
    return (1 / (255 * std)).astype(np.float32), (mean / std).astype(np.float32)
