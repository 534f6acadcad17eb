"""Masked reconstruction: restore hidden parts of the input, without labels.

K. He et al.: Masked Autoencoders Are Scalable Vision Learners, CVPR 2022, arXiv 2111.06377: the mean squared error over
the hidden patches alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from federation.errors import SettingsError
from federation.records import Batch, Output
from federation.tasks.task import Statistics, Task
from gaitway.tasks.masked_reconstruction import MaskedReconstructionTask


@dataclass(frozen=True, kw_only=True)
class MaskedReconstruction(MaskedReconstructionTask, Task):
    """Mean squared error of `logits`, which are the restored x (B, ...), where x was `hidden` from the network.

    The targets y are only dealt by; the network chooses what it hides, and says it: a masked autoencoder around the
    plan's model, whose decoder these options describe.
    """

    @property
    def decoder(self) -> Mapping[str, Any]:
        """What the autoencoder is built with."""
        names = ("kernels", "heads", "mlp", "dropout")
        return {"masked": self.masked, **{name: getattr(self, f"decoder_{name}") for name in names}}

    def loss(self, output: Output, batch: Batch) -> Tensor:
        """Return each example's mean squared error (B,) over what was hidden; 0 where nothing was."""
        squares, hidden = _errors(output, batch)
        return squares.sum(1) / hidden.sum(1).clamp(min=1)

    def prediction(self, output: Output) -> Tensor:
        """Return what the network restored (B, ...)."""
        return output.logits

    def statistics(self, output: Output, batch: Batch) -> Statistics:
        """Sum the squared errors and the squares of x over hidden numbers, and count these."""
        squares, hidden = _errors(output, batch)
        real = batch.mask.double()[:, None]
        return {
            "squared_error": (squares.double() * real).sum(),
            "square": (batch.x.flatten(1).double() ** 2 * hidden.double() * real).sum(),
            "hidden": (hidden.double() * real).sum(),
        }

    def no_statistics(self, classes: int) -> Statistics:
        """Count nothing hidden."""
        none = torch.zeros((), dtype=torch.float64)
        return {"squared_error": none, "square": none, "hidden": none}

    def mismatch(self, output: Output, batch: Batch) -> str | None:
        """Want what was hidden, and logits of x's shape."""
        if output.hidden is not None and output.logits.shape == batch.x.shape:
            return None
        return (
            "masked_reconstruction needs a network that hides a part of its input and restores all of it, such as a "
            f"masked autoencoder; for examples of shape {tuple(batch.x.shape)} it gave {tuple(output.logits.shape)}"
            + (", and does not say what it hid" if output.hidden is None else "")
        )


def _errors(output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return squared errors (B, m), 0 where x was seen, and 1 where it was hidden (B, m)."""
    if output.hidden is None:
        raise SettingsError("masked_reconstruction needs a network that says what it hid; this one does not")
    hidden = output.hidden.to(batch.x.dtype).expand_as(batch.x).flatten(1)
    return (output.logits - batch.x).flatten(1) ** 2 * hidden, hidden
