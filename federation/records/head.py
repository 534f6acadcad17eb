"""The classifier's parameters: those of the submodule `head`, in every network of `models`.

`with_linear_head` makes the head one linear function of the features. A dense layer is one already. Two with an
activation between them, as `har_cnn` and `hart` have, become one exactly: act(z) − act(−z) = z for ReLU, SiLU and GELU,
so that z and −z as hidden units give z back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from federation.errors import SettingsError
from federation.records import Tensors
from federation.records.tree import merge, select
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
            f"{method}: head_lr_factor={factor}: expected a factor above 0 of the learning rate "
            "while the head trains alone; 1 trains it at the base's"
        )


def check_dense(params: Tensors, classes: int, method: str) -> None:
    """Refuse a head that cannot be made linear.

    Raises:
        SettingsError: saying what the head has, and what it must have.
    """
    shapes = [tuple(value.shape) for value in select(params, is_head).values()]
    sizes = [shape[0] for shape in shapes if len(shape) == 2]
    if [len(shape) for shape in shapes] not in ([2, 1], [2, 1, 2, 1]):
        raise SettingsError(
            f"{method} needs a network whose head is one dense layer, or two with ReLU, SiLU or GELU between them; "
            f"this one's has tensors of shapes {shapes}: choose another model, such as har_cnn"
        )
    if len(sizes) == 2 and sizes[0] < 2 * classes:
        raise SettingsError(
            f"{method} needs two hidden units of the head for each class: {2 * classes} for {classes} classes, and "
            f"this network's head has {sizes[0]}; raise the model's option for its width"
        )


def with_linear_head(params: Tensors, weight: Tensor, bias: Tensor) -> Tensors:
    """Return the parameters with a head that gives features @ weight.T + bias; weight (C, D), bias (C,)."""
    head = select(params, is_head)
    if len(head) == 2:
        return merge(params, dict(zip(head, (weight, bias), strict=True)))
    first, first_bias, last, last_bias = head
    spare = head[first].shape[0] - 2 * weight.shape[0]
    identity = torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device)
    new = {
        first: torch.cat([weight, -weight, weight.new_zeros(spare, weight.shape[1])]),
        first_bias: torch.zeros_like(head[first_bias]),
        last: torch.cat([identity, -identity, weight.new_zeros(weight.shape[0], spare)], 1),
        last_bias: bias,
    }
    return merge(params, new)
