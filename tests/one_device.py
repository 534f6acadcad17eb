"""A GPU to place tensors on where there is none: torch's meta device, and a watch that lets no operator mix devices.

CUDA refuses an operator whose tensors lie apart, but for a number of the CPU's; torch's meta device would compute the
shape of whatever comes. What is asked back from it are zeros: enough to see where everything lies.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU = "meta"
COPY, READ_NUMBER = "aten::_to_copy", "aten::_local_scalar_dense"
COPIES = (COPY, "aten::copy_")


class DeviceMixError(RuntimeError):
    """An operator got tensors of two devices."""


class OneDevice(TorchDispatchMode):
    """Watches every operator meanwhile; `computed` counts those on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.computed = 0
        self._autocast = mock.patch("torch.is_autocast_enabled", return_value=False)  # it knows no such device

    def __enter__(self) -> OneDevice:
        self._autocast.start()
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._autocast.stop()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, function.name()
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        places = {each.device.type for each in given if each.dim() or each.device.type == GPU}
        if len(places) > 1 and name not in COPIES:
            raise DeviceMixError(f"{name} got tensors {[(each.device.type, tuple(each.shape)) for each in given]}")
        if places != {GPU}:
            return function(*args, **kwargs)
        self.computed += 1
        if name == READ_NUMBER:
            return torch.zeros((), dtype=args[0].dtype).item()
        if name == COPY and torch.device(kwargs.get("device") or GPU).type != GPU:
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return function(*args, **kwargs)
