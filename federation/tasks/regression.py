"""Regression: one number per example."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from federation.records import Batch, Output
from federation.tasks.task import Statistics, Task
from gaitway.tasks.regression import CELLS, CELLS_PER_SPREAD, RegressionTask


@dataclass(frozen=True, kw_only=True)
class Regression(RegressionTask, Task):
    """Mean squared error of logits (B, 1) and (y − center) / spread, of numbers y (B,)."""

    def loss(self, output: Output, batch: Batch) -> Tensor:
        """Return each example's squared error (B,), in squared spreads."""
        return (output.logits[:, 0] - self._scaled(batch.y).to(output.logits.dtype)) ** 2

    def prediction(self, output: Output) -> Tensor:
        """Return the number of each example (B,), in its own unit."""
        return self.center + self.spread * output.logits[:, 0]

    def statistics(self, output: Output, batch: Batch) -> Statistics:
        """Sum errors, numbers and their squares, and count and sum numbers by cell, as `number_sums` does."""
        real = batch.mask.double()
        z = self._scaled(batch.y)
        error = output.logits[:, 0].double() - z
        cell = ((z + CELLS / CELLS_PER_SPREAD / 2) * CELLS_PER_SPREAD).floor().clamp(0, CELLS - 1).long()
        none = torch.zeros(CELLS, dtype=torch.float64, device=z.device)
        return {
            "count": real.sum(),
            "absolute_error": (error.abs() * real).sum(),
            "squared_error": (error**2 * real).sum(),
            "sum": (z * real).sum(),
            "square": (z**2 * real).sum(),
            "cell_counts": none.scatter_add(0, cell, real),
            "cell_sums": none.scatter_add(0, cell, z * real),
        }

    def no_statistics(self, classes: int) -> Statistics:
        """Count no example."""
        none, cells = torch.zeros((), dtype=torch.float64), torch.zeros(CELLS, dtype=torch.float64)
        sums = ("count", "absolute_error", "squared_error", "sum", "square")
        return {**dict.fromkeys(sums, none), "cell_counts": cells, "cell_sums": cells}

    def mismatch(self, output: Output, batch: Batch) -> str | None:
        """Want logits (B, 1) and one number an example."""
        if tuple(output.logits.shape[1:]) == (1,) and batch.y.dim() == 1 and batch.y.is_floating_point():
            return None
        return (
            "regression needs logits (examples, 1) and one number an example; the network gave "
            f"{tuple(output.logits.shape)} for targets of shape {tuple(batch.y.shape)} and type {batch.y.dtype}"
        )

    def _scaled(self, targets: Tensor) -> Tensor:
        return (targets.double() - self.center) / self.spread
