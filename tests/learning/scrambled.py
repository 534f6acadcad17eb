"""The broken training step of November 2026, on purpose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from federation.training import optimizers


def scramble_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fused Adam read the gradients of kernels (out, in, …) in the order of channels last; forks inherit it."""
    honest = optimizers.fused_adam

    def scrambled(params: list[Tensor], gradients: list[Tensor], *rest: Any, **options: Any) -> None:
        honest(params, [_raw(gradient) for gradient in gradients], *rest, **options)

    monkeypatch.setattr(optimizers, "fused_adam", scrambled)


def _raw(gradient: Tensor) -> Tensor:
    if gradient.dim() < 3:
        return gradient
    return torch.as_strided(gradient.movedim(1, -1).contiguous(), gradient.shape, gradient.stride())
