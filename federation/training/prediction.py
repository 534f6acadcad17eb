"""Predictions in fixed batches of the examples' own order, so that a batch-coupled layer gives the same each time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import vmap

from federation.method import Method
from federation.records import Client, Forward
from federation.tree import stack


@torch.no_grad()
def predict(method: Method, forward: Forward, client: Client, x: Tensor, batch_size: int) -> npt.NDArray[np.int64]:
    """Classes (n,) that a client's model gives to x (n, ...); `forward` is the network's evaluation function."""
    if not len(x):
        return np.zeros(0, np.int64)
    parts = [method.predict(forward, client, part).argmax(-1) for part in torch.split(x, batch_size)]
    return _numpy(torch.cat(parts))


@torch.no_grad()
def predict_stacked(
    method: Method, forward: Forward, clients: Sequence[Client], x: Tensor, batch_size: int
) -> npt.NDArray[np.int64]:
    """Classes (K, n) that K clients' models give to the same x (n, ...)."""
    together = stack(list(clients))

    def one(client: Client, part: Tensor) -> Tensor:
        return method.predict(forward, client, part).argmax(-1)

    many = vmap(one, in_dims=(0, None))
    return _numpy(torch.cat([many(together, part) for part in torch.split(x, batch_size)], 1))


def _numpy(classes: Tensor) -> npt.NDArray[np.int64]:
    array: npt.NDArray[np.int64] = classes.cpu().numpy()
    return array
