"""The training process's checkpoint after each epoch, with torch; only that process imports this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from edge_agent.errors import JobError
from edge_agent.storage.data_folder import write_file
from edge_agent.training.round_budget import RoundBudget
from federation import wire
from federation.errors import WireError
from federation.records import Client, Tensors, Tree
from federation.records.tree import map_tree
from federation.training.local_round import EpochCheckpoint, TrainingCallback
from federation.wire.schema import schema_of


class EpochCheckpoints(TrainingCallback):
    """Keeps each epoch in the file, begins after the last one kept, and stops when `budget_s` seconds are used up."""

    wants_checkpoints = True

    def __init__(self, budget: RoundBudget, initial: Client, processor: str = "cpu") -> None:
        self.budget, self.initial, self.processor = budget, initial, processor

    def resume(self) -> EpochCheckpoint | None:
        """Read the file; a damaged one is as good as none. Checkpoints of other rounds are deleted."""
        self.budget.forget_others()
        try:
            data = self.budget.path.read_bytes()
            tree = wire.decode(data, limit_bytes=len(data))
            found, seconds = self._read(tree), float(tree["progress"]["seconds"])
        except (OSError, WireError, JobError, KeyError, TypeError, ValueError, RuntimeError):
            return None
        self.budget.resumed(found.epoch, seconds)
        moved: EpochCheckpoint = map_tree(self._there, found)
        return moved

    def should_stop(self, steps: int) -> bool:
        """Say after at least one step whether the time is over."""
        return self.budget.should_stop(steps)

    def on_epoch_end(self, checkpoint: EpochCheckpoint) -> None:
        """Replace the file."""
        progress = {
            "epoch": torch.tensor(checkpoint.epoch),
            "steps": torch.tensor(checkpoint.steps),
            "seconds": torch.tensor(self.budget.used_s, dtype=torch.float64),
        }
        tensors = {name: value for name, value in checkpoint._asdict().items() if name not in progress}
        write_file(self.budget.path, wire.encode({**tensors, "progress": progress}))
        self.budget.epoch_ended(checkpoint.epoch)

    def _there(self, value: Any) -> Any:
        return value.to(self.processor) if isinstance(value, Tensor) else value

    def _read(self, tree: Tree) -> EpochCheckpoint:
        progress = tree["progress"]
        return EpochCheckpoint(
            epoch=int(progress["epoch"]),
            steps=int(progress["steps"]),
            params=_like(self.initial.params, tree["params"]),
            buffers=_like(self.initial.buffers, tree.get("buffers", {})),
            momenta=tree.get("momenta", {}),
            loss=_scalar(tree["loss"]),
            examples=_scalar(tree["examples"]),
        )


def _like(expected: Tensors, found: Mapping[str, Any]) -> Tensors:
    if schema_of(dict(found)) != schema_of(expected):
        raise JobError("the checkpoint is of another network")
    return dict(found)


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.shape:
        raise JobError("the checkpoint's sums are not single numbers")
    return value
