"""SGD and Adam as two functions each: pure, so that they stack over clients and can be masked, or in place for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam as fused_adam

from federation.errors import unknown_name
from federation.plan import TrainingConfig
from federation.records import Tensors

Rate = float | Tensor
"""What a learning rate is multiplied by; a tensor () where one compiled program serves several rates."""


class Apply(Protocol):
    """One step at `rate` times the optimizer's learning rate; in place it is a number."""

    def __call__(self, gradients: Tensors, state: Any, params: Tensors, rate: Rate = 1.0) -> tuple[Any, Tensors]:
        """Return the next state and parameters."""
        ...


class Optimizer(NamedTuple):
    """`init(params) -> state`; `apply(gradients, state, params, rate) -> (state, params)`.

    With `in_place` what `apply` returns is what it was given, changed: no parameter is copied, which is a fifth of a
    step for a network of a million parameters on small batches. The caller must own state and parameters.
    """

    init: Callable[[Tensors], Any]
    apply: Apply
    in_place: bool = False


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0, *, in_place: bool = False) -> Optimizer:
    """Make plain SGD with heavy-ball momentum and coupled weight decay, as torch.optim.SGD computes it."""

    def init(params: Tensors) -> Tensors:
        return {name: torch.zeros_like(value) for name, value in params.items()} if momentum else {}

    def apply(gradients: Tensors, state: Tensors, params: Tensors, rate: Rate = 1.0) -> tuple[Tensors, Tensors]:
        step = _decayed(gradients, params, weight_decay)
        if momentum:
            # torch starts the velocity at the first gradient; from zero that is the same: m·0 + g
            step = state = {name: momentum * state[name] + step[name] for name in params}
        return state, {name: params[name] - lr * rate * step[name] for name in params}

    def change(gradients: Tensors, state: Tensors, params: Tensors, rate: Rate = 1.0) -> tuple[Tensors, Tensors]:
        step = _decayed(gradients, params, weight_decay)
        for name, value in params.items():
            moving = state[name].mul_(momentum).add_(step[name]) if momentum else step[name]
            value.add_(moving, alpha=-lr * float(rate))
        return state, params

    return Optimizer(init, change, in_place=True) if in_place else Optimizer(init, apply)


def adam(
    lr: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    *,
    in_place: bool = False,
) -> Optimizer:
    """Make Adam (Kingma and Ba, ICLR 2015, arXiv 1412.6980, algorithm 1) with coupled weight decay.

    `in_place` makes each step one kernel of torch's, which vmap cannot lift: the same up to rounding.
    """
    b1, b2 = betas

    def init(params: Tensors) -> Any:
        m, v = ({name: value.new_zeros(value.shape) for name, value in params.items()} for _ in range(2))
        first = next(iter(params.values()))
        return {"m": m, "v": v, "t": first.new_zeros(())}

    def apply(gradients: Tensors, state: Any, params: Tensors, rate: Rate = 1.0) -> tuple[Any, Tensors]:
        t = state["t"] + 1
        gradients = _decayed(gradients, params, weight_decay)
        m = {name: torch.lerp(state["m"][name], gradients[name], 1 - b1) for name in params}
        v = {name: b2 * state["v"][name] + (1 - b2) * gradients[name] ** 2 for name in params}
        size, root = lr * rate / (1 - b1**t), (1 - b2**t).sqrt()
        new = {name: params[name] - size * m[name] / (v[name].sqrt() / root + epsilon) for name in params}
        return {"m": m, "v": v, "t": t}, new

    def change(gradients: Tensors, state: Any, params: Tensors, rate: Rate = 1.0) -> tuple[Any, Tensors]:
        m, v = state["m"], state["v"]
        _check_contiguous({"parameter": params, "first moment": m, "second moment": v})
        # autograd returns a convolution's gradient channels last, as it was computed; only torch's own `.grad` is laid
        # out as its parameter, which is what the kernel expects of all four
        fused_adam(
            list(params.values()), [gradients[name].contiguous() for name in params], [m[name] for name in params],
            [v[name] for name in params], [], [state["t"].clone() for _ in params], fused=True, amsgrad=False,
            beta1=b1, beta2=b2, lr=lr * float(rate), weight_decay=weight_decay, eps=epsilon, maximize=False,
        )  # fmt: skip
        return {"m": m, "v": v, "t": state["t"] + 1}, params

    return Optimizer(init, change, in_place=True) if in_place else Optimizer(init, apply)


def optimizer_for(training: TrainingConfig, *, stacked: bool = False) -> Optimizer:
    """Return the plan's optimizer for one client, in place, or for stacked ones.

    Raises:
        SettingsError: for a name that is neither "adam" nor "sgd".
    """
    if training.optimizer == "adam":
        return adam(training.lr, training.weight_decay, in_place=not stacked)
    if training.optimizer == "sgd":
        return sgd(training.lr, training.momentum, training.weight_decay, in_place=not stacked)
    raise unknown_name("optimizer", training.optimizer, ["adam", "sgd"])


def _check_contiguous(trees: dict[str, Tensors]) -> None:
    for owner, tensors in trees.items():
        for name, value in tensors.items():
            if not value.is_contiguous():
                raise ValueError(
                    f"{owner} of {name!r}: strides {value.stride()} of shape {tuple(value.shape)}; "
                    "fused Adam walks raw memory and changes it: clone it contiguous first"
                )


def _decayed(gradients: Tensors, params: Tensors, weight_decay: float) -> dict[str, Tensor]:
    if not weight_decay:
        return gradients
    return {name: gradients[name] + weight_decay * params[name] for name in params}
