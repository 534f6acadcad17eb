"""Whether a device lies as those lay whose windows the shared head has learnt from (`models.har_features`)."""

from __future__ import annotations

import json
from typing import NamedTuple

import torch
from torch import nn

from edge_agent.training.local_data import LocalData
from federation.aggregation.ridge_numpy import FAR, FixedSums, feature_moments
from federation.records import Tree
from models.har_features import gravity_columns, mean_gravity


class Orientation(NamedTuple):
    """How far gravity lies from what is usual, in deviations; None: nobody has said yet what is."""

    distance: float | None

    @property
    def is_far(self) -> bool:
        """Whether a head that does not know the axes is the safer one."""
        return self.distance is not None and self.distance > FAR

    def to_json(self) -> bytes:
        """Write it as a file has it."""
        return json.dumps({"distance": self.distance, "is_far": self.is_far}).encode()


def orientation_of(module: nn.Module, data: LocalData, shared: Tree) -> Orientation:
    """Measure how far gravity on all windows (n, window, 6) of a device lies from that in the shared sums."""
    columns = gravity_columns(module)
    usual = feature_moments(FixedSums.of(shared), columns) if columns else None
    if usual is None or not len(data.train):
        return Orientation(None)
    return Orientation(usual.distance(mean_gravity(module, torch.from_numpy(data.train.x)).numpy()))
