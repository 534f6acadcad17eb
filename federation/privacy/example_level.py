"""Example-level differential privacy on the device (DP-SGD): each example's gradient is clipped, their sum gets noise.

M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang: Deep Learning with Differential
Privacy, CCS 2016, arXiv 1607.00133, algorithm 1. Gradients by example are `grad` under `vmap`: no hooks on layers, so
any network does. Each example is alone in its pass, so that nobody else's data move its gradient: with GroupNorm and
LayerNorm that is the network's own gradient; a trained BatchNorm would have statistics of one example, and no model
here has one. An ALP layer's prototypes move by the batch, as buffers, and are not bounded by this.

Neighbours differ by one example, whose gradient is zero in one of them. What is protected is a window, not a person:
all windows of a person together have the privacy of their number times ε. For people: `differential_privacy`.

Differs from the paper: **no sampling is claimed.** Batches here are not Poisson samples: an epoch deals all examples,
in an order of the plan's seed, which the server knows, into batches of which each example is in exactly one. So an
epoch is one Gaussian mechanism, E epochs in R rounds are E R of them, and `accounting.epsilon_of_epochs` has no
amplification. `accounting.epsilon_of_poisson` is what the same noise would have with secret Poisson samples, to compare
with the literature.

Noise is floating point from torch's generator, which is not cryptographic: I. Mironov (CCS 2012) shows what that can
give away. Statistics that a method sends besides parameters are not bounded by this.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from federation.errors import SettingsError
from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Batch, Tensors
from federation.seeds import seed_for

Objective = Callable[[Tensors, Batch], tuple[Tensor, Tensors]]


@dataclass(frozen=True)
class ExampleNoise:
    """A `Setup.differentiate`: (Σ_i clip(g_i) + N(0, (z C)²)) / B, of the batch's examples i.

    `batch_size` B is the plan's, whatever a last batch has: its number of examples would say something of them.
    `generator` repeats a simulation; None: one that the system's entropy has seeded.
    """

    clip_norm: float  # C
    noise_multiplier: float  # z
    batch_size: int
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        """Refuse what bounds nothing.

        Raises:
            SettingsError: naming the number.
        """
        if not (self.clip_norm > 0 and self.noise_multiplier >= 0 and self.batch_size > 0):
            raise SettingsError(
                f"clip_norm={self.clip_norm}, noise_multiplier={self.noise_multiplier}, batch_size={self.batch_size}: "
                "expected a norm above 0, a multiplier of 0 or more, and 1 example or more"
            )

    @classmethod
    def of(cls, training: TrainingConfig, client_id: str, round_number: int, *, secret: bool) -> ExampleNoise | None:
        """Return what a plan asks for; its noise repeats, by client and round, unless it is secret. None: nothing."""
        if training.example_clip_norm is None:
            return None
        seed = secrets.randbits(63) if secret else seed_for(training.seed, "example noise", client_id, round_number)
        draw = torch.Generator().manual_seed(seed)
        return cls(training.example_clip_norm, training.example_noise_multiplier, training.batch_size, draw)

    def __call__(self, objective: Objective, params: Tensors, batch: Batch) -> tuple[Tensors, Tensor, Tensors]:
        """Return noisy gradients, the mean loss and the buffers as one pass over the batch moves them."""
        gradients, losses = per_example(objective, params, batch)
        _, moved = objective(params, batch)
        summed = clipped_sum(gradients, batch.mask, self.clip_norm)
        deviation, draw = self.noise_multiplier * self.clip_norm, self.generator or _fresh()
        noisy = {name: (value + deviation * _normal(value, draw)) / self.batch_size for name, value in summed.items()}
        loss = (losses * batch.mask).sum() / batch.mask.sum().clamp(min=1)
        return noisy, loss.detach(), {name: value.detach() for name, value in moved.items()}


def per_example(objective: Objective, params: Tensors, batch: Batch) -> tuple[Tensors, Tensor]:
    """Return each example's gradients (B, ...) and losses (B,)."""

    def alone(x: Tensor, y: Tensor) -> tuple[Tensors, Tensor]:
        example = Batch(x[None], y[None], batch.mask.new_ones(1))
        gradients, (loss, _) = grad_and_value(objective, has_aux=True)(params, example)
        return gradients, loss

    # dropout that is seeded by buffers drops the same units of every example of a batch
    found: tuple[Tensors, Tensor] = vmap(alone, randomness="different")(batch.x, batch.y)
    return found


def clipped_sum(gradients: Tensors, mask: Tensor, clip_norm: float) -> Tensors:
    """Return Σ_i g_i · min(1, C/‖g_i‖) over the examples whose mask (B,) is 1, of gradients (B, ...) by parameter."""
    squares = (value.flatten(1).square().sum(1) for value in gradients.values())
    norm = torch.sqrt(sum(squares, mask.new_zeros(len(mask))))
    scale = (clip_norm / norm.clamp(min=1e-12)).clamp(max=1) * mask
    return {name: torch.einsum("b...,b->...", value, scale) for name, value in gradients.items()}


def epochs_of(method: Method, training: TrainingConfig) -> int:
    """Return in how many steps of a round each example is."""
    return sum(phase.epochs for phase in method.phases(training))


def _normal(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=draw, dtype=like.dtype).to(like.device)


def _fresh() -> torch.Generator:
    return torch.Generator().manual_seed(secrets.randbits(63))
