"""How far an update moves the model; `federation.aggregation.screening` says what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from federation.records import Tree, UploadGroup
from federation.records.tree import flatten

_JUDGED = (UploadGroup.CHANGE, UploadGroup.VALUE, UploadGroup.SQUARED_VALUE)


def change_norms(upload: Tree, broadcast: Tree, groups: Mapping[str, UploadGroup]) -> dict[str, float]:
    """Return the L2 norm of each group that the method (`Method.upload_groups`) wants judged by it.

    Of a change it is the norm of the difference from the broadcast, of a value its own, of a squared value the root of
    its own: features that are three times as large have nine times the covariance, and are no ninefold departure.
    """
    return {
        group: _judged(upload[group], broadcast.get(group, {}), kind)
        for group, kind in groups.items()
        if kind in _JUDGED and group in upload
    }


def _judged(sent: Tree | torch.Tensor, began: Tree | torch.Tensor, kind: UploadGroup) -> float:
    norm = _norm(sent, began if kind is UploadGroup.CHANGE else {})
    return math.sqrt(norm) if kind is UploadGroup.SQUARED_VALUE else norm


def _norm(sent: Tree | torch.Tensor, began: Tree | torch.Tensor) -> float:
    end, start = flatten({"": sent}), flatten({"": began})
    squares = 0.0
    for name, value in end.items():
        like = start.get(name)
        moved = value.to(torch.float64, copy=True)
        if like is not None and like.shape == value.shape:
            moved -= like
        squares += float(torch.linalg.vector_norm(moved)) ** 2
    return math.sqrt(squares)
