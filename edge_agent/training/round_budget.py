"""The time that a round's training may take, and the file that it goes on from after a kill; without torch.

A checkpoint's file name is a digest of everything that the round depends on, so that it is found again by the same
round of the same client on the same windows, and by no other.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

from edge_agent.training.job import Job
from federation.protocol.messages import Processor
from har_pipeline import ClientWindows

FORMAT = 1
"""Raised when a checkpoint's meaning changes, so that an older one is not read."""
SUFFIX = ".epoch"


def checkpoint_path(folder: Path, job: Job, windows: ClientWindows, processor: Processor = "cpu") -> Path:
    """Name the checkpoint of a job that trains on these windows there."""
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
        "runtime": _runtime(job),
        "program": job.program.name if job.program else "",
        "threads": job.threads,
    }
    if processor != "cpu":
        bound["processor"] = processor
    return folder / (hashlib.sha256(json.dumps(bound, sort_keys=True).encode()).hexdigest()[:40] + SUFFIX)


def _runtime(job: Job) -> str:
    if job.runtime == "torch":
        return f"torch {version('torch')}"
    from export.program.runtime import VERSION

    return f"onnxruntime {VERSION}"


class RoundBudget:
    """Counts the seconds and whole epochs of a round, over interrupted runs of it, and says when the time is over."""

    def __init__(
        self,
        path: Path,
        budget_s: float,
        on_epoch: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.budget_s, self.on_epoch, self._clock = path, budget_s, on_epoch, clock
        self._begun, self._earlier_s = clock(), 0.0
        self.epochs = 0
        """Whole epochs."""
        self.stopped_at: int | None = None
        """Steps after which the time was over."""

    @property
    def used_s(self) -> float:
        """Seconds spent on this round, with those of interrupted runs up to the epoch that this one began after."""
        return self._earlier_s + self._clock() - self._begun

    def resumed(self, epochs: int, seconds: float) -> None:
        """Go on after so many epochs, which took that long."""
        self.epochs, self._earlier_s = epochs, seconds

    def forget_others(self) -> None:
        """Delete the checkpoints of other rounds."""
        for other in self.path.parent.glob(f"*{SUFFIX}"):
            if other != self.path:
                other.unlink(missing_ok=True)

    def should_stop(self, steps: int) -> bool:
        """Say after at least one step whether the time is over."""
        if steps == 0 or self.used_s < self.budget_s:
            return False
        self.stopped_at = steps
        return True

    def epoch_ended(self, epoch: int) -> None:
        """Note that an epoch is whole and kept."""
        self.epochs = epoch
        self.on_epoch(epoch)
