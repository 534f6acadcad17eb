"""How far an update moves the model; `federation.aggregation.screening` says what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from federation.records import Tree, UploadGroup
from federation.tree import flatten


def change_norms(upload: Tree, broadcast: Tree, groups: Mapping[str, UploadGroup]) -> dict[str, float]:
    """Return the L2 norm of each group that the method (`Method.upload_groups`) wants judged by it.

    Of a change it is the norm of the difference from the broadcast, of a value its own.
    """
    return {
        group: _norm(upload[group], broadcast.get(group, {}) if kind is UploadGroup.CHANGE else {})
        for group, kind in groups.items()
        if kind in (UploadGroup.CHANGE, UploadGroup.VALUE) and group in upload
    }


def _norm(sent: Tree | torch.Tensor, began: Tree | torch.Tensor) -> float:
    mine, start = flatten({"": sent}), flatten({"": began})
    squares = 0.0
    for name, value in mine.items():
        like = start.get(name)
        moved = value.to(torch.float64, copy=True)
        if like is not None and like.shape == value.shape:
            moved -= like
        squares += float(torch.linalg.vector_norm(moved)) ** 2
    return math.sqrt(squares)
