"""The training process's checkpoint after each epoch, and the end of its time; only that process imports this.

A checkpoint's file name is a digest of everything that the round depends on, so that it is found again by the same
round of the same client on the same windows, and by no other.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge_agent.errors import JobError
from edge_agent.storage.files import write_file
from edge_agent.training.job import Job
from federation import wire
from federation.errors import WireError
from federation.records import Client, Tensors, Tree
from federation.training.callbacks import EpochCheckpoint, TrainingCallback
from federation.wire.schema import schema_of
from har_pipeline import ClientWindows

FORMAT = 1
"""Raised when a checkpoint's meaning changes, so that an older one is not read."""
SUFFIX = ".epoch"


def checkpoint_path(folder: Path, job: Job, windows: ClientWindows) -> Path:
    """Name the checkpoint of a job that trains on these windows."""
    data = hashlib.sha256(windows.x.tobytes())
    data.update(np.ascontiguousarray(windows.targets).tobytes())
    bound = {
        "format": FORMAT,
        "device": job.device,
        "round": job.round,
        "base": job.model.sha256,
        "client": job.client_state.name if job.client_state else "",
        "plan": job.plan.model_dump(mode="json"),  # with the seed
        "network": job.network.model_dump(mode="json"),
        "windows": data.hexdigest(),
        "torch": torch.__version__,
        "threads": job.threads,
    }
    return folder / (hashlib.sha256(json.dumps(bound, sort_keys=True).encode()).hexdigest()[:40] + SUFFIX)


class EpochCheckpoints(TrainingCallback):
    """Keeps each epoch in the file, begins after the last one kept, and stops when `budget_s` seconds are used up."""

    wants_checkpoints = True

    def __init__(
        self,
        path: Path,
        initial: Client,
        budget_s: float,
        on_epoch: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.initial, self.budget_s, self.on_epoch, self._clock = path, initial, budget_s, on_epoch, clock
        self._begun, self._earlier_s = clock(), 0.0
        self.epochs = 0
        """Whole epochs."""
        self.stopped_at: int | None = None
        """Steps after which the time was over."""

    @property
    def used_s(self) -> float:
        """Seconds spent on this round, with those of interrupted runs up to the epoch that this one began after."""
        return self._earlier_s + self._clock() - self._begun

    def resume(self) -> EpochCheckpoint | None:
        """Read the file; a damaged one is as good as none. Checkpoints of other rounds are deleted."""
        for other in self.path.parent.glob(f"*{SUFFIX}"):
            if other != self.path:
                other.unlink(missing_ok=True)
        try:
            data = self.path.read_bytes()
            found = self._read(wire.decode(data, limit_bytes=len(data)))
        except (OSError, WireError, JobError, KeyError, TypeError, ValueError, RuntimeError):
            return None
        self.epochs = found.epoch
        return found

    def should_stop(self, steps: int) -> bool:
        """Say after at least one step whether the time is over."""
        if steps == 0 or self.used_s < self.budget_s:
            return False
        self.stopped_at = steps
        return True

    def on_epoch_end(self, checkpoint: EpochCheckpoint) -> None:
        """Replace the file."""
        self.epochs = checkpoint.epoch
        progress = {
            "epoch": torch.tensor(checkpoint.epoch),
            "steps": torch.tensor(checkpoint.steps),
            "seconds": torch.tensor(self.used_s, dtype=torch.float64),
        }
        tensors = {name: value for name, value in checkpoint._asdict().items() if name not in progress}
        write_file(self.path, wire.encode({**tensors, "progress": progress}))
        self.on_epoch(checkpoint.epoch)

    def _read(self, tree: Tree) -> EpochCheckpoint:
        progress = tree["progress"]
        self._earlier_s = float(progress["seconds"])
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
