"""Which parameters are the classifier: those of the submodule `head`, in every network of `models`."""

from __future__ import annotations

import torch

from federation.errors import SettingsError
from federation.records import Tensors
from gaitway.input_spec import HEAD


def is_head(name: str) -> bool:
    """Whether a parameter belongs to the classifier; its input is the feature."""
    return name.startswith(HEAD)


def is_base(name: str) -> bool:
    """Whether a parameter belongs to the feature extractor E."""
    return not is_head(name)


def with_placeholder_head(params: Tensors) -> Tensors:
    """Return parameters with a head of numbers that differ and are not 0, for an export in which others take its place.

    An exporter leaves out a bias of zeros, and makes one of equal tensors. Small, so that rounding stays small too.
    """
    return {
        name: torch.linspace(1e-3, 2e-3, value.numel(), dtype=value.dtype).reshape(value.shape)
        if is_head(name)
        else value
        for name, value in params.items()
    }


def check_head_lr_factor(method: str, factor: float) -> None:
    """Refuse a factor that is no learning rate's.

    Raises:
        SettingsError: unless it is above 0 and finite.
    """
    if not 0 < factor < float("inf"):
        raise SettingsError(
            f"{method}: head_lr_factor={factor}: expected a number above 0, by which the learning rate is multiplied "
            "while the head trains alone; 1 trains it at the base's"
        )
