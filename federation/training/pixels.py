"""Images as bytes until they are looked at: (x / 255 − mean) / std by channel, batch by batch.

An image's bytes take a quarter of its float32 numbers, and the conversion is two exactly rounded operations an
element: the numbers are the same whenever, and on whatever engine or device, it is done.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from federation.errors import SettingsError


class Moments(NamedTuple):
    """Mean and standard deviation of each channel, of pixels between 0 and 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalized(self, x: Tensor) -> Tensor:
        """Turn bytes (..., C, H, W) into float32 of mean 0 and deviation 1."""
        mean, std = np.array(self.mean), np.array(self.std)
        # one multiplication and one subtraction in float32: (x/255 − m)/s = x·a − b
        scale, shift = (
            torch.from_numpy(array.astype(np.float32)).to(x.device).view(-1, 1, 1)
            for array in (1 / (255 * std), mean / std)
        )
        return (x * scale).sub_(shift)


def network_input(x: Tensor, moments: Moments | None) -> Tensor:
    """Return examples as a network takes them: bytes of images normalized, anything else as it is.

    Raises:
        SettingsError: for bytes that nothing is known of.
    """
    if x.dtype != torch.uint8:
        return x
    if moments is None:
        raise SettingsError(
            f"examples came as bytes {tuple(x.shape)}, and nothing says how they are normalized; give the channels' "
            "moments (Setup.moments) with them, or numbers"
        )
    return moments.normalized(x)
