"""Limits of a training process: its processor and memory, and the time of a round.

On the CPU its memory is capped by the kernel. CUDA maps more address space than any cap would leave it, so there the
cap is one of the GPU's memory: torch's allocator and ONNX Runtime's arena keep to it, and the process itself has none.

An interrupted round goes on from a checkpoint. Its file name is a digest of everything that the round depends on, so
that it is found again by the same round of the same client on the same windows, and by no other.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edge_agent.config.training import TrainingDevice
from edge_agent.training.job import Job
from federation.protocol.messages import Processor, Runtime
from har_pipeline import ClientWindows

GPU_FILES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/dxg")
"""Of NVIDIA's drivers: cards, Jetsons before and since JetPack 5, Windows' subsystem for Linux."""
GPU_ERRORS = ("CUDA", "CUBLAS", "CUDNN", "cuda", "cublas", "cudnn")
"""What errors of torch and of ONNX Runtime name that come from the GPU, of its memory too."""


class Placement(NamedTuple):
    """What computes a job, and in words where; none where nobody asked for a GPU, and there is none."""

    processor: Processor
    words: str = ""
    advice: str = ""
    """What to do where there might have been a GPU."""

    def describe(self) -> str:
        """Say all of it."""
        return f"{self.words}; {self.advice}" if self.advice else self.words


ON_CPU = Placement("cpu")


def may_use_gpu(wanted: TrainingDevice) -> bool:
    """Whether a GPU is to be looked for; without loading anything."""
    return wanted == "cuda" or (wanted == "auto" and any(map(os.path.exists, GPU_FILES)))


def place(runtime: Runtime, wanted: TrainingDevice, memory_mb: int) -> Placement:
    """Find where the runtime can compute, with no more than so many MB of it (0: any); the CPU's cap is set by then."""
    if not may_use_gpu(wanted):
        return ON_CPU
    return _with_torch(memory_mb) if runtime == "torch" else _with_onnx(memory_mb)


def cap_memory(memory_mb: int) -> None:
    """Cap the private writable memory of this process; 0: no cap."""
    if not memory_mb:
        return
    cap = memory_mb << 20
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (cap if hard == resource.RLIM_INFINITY else min(cap, hard), hard))


def fallback(reason: str, memory_mb: int) -> Placement:
    """Compute on the CPU, within its cap, and say why."""
    cap_memory(memory_mb)
    advice = 'install a build with CUDA (docs/devices.md), or set [training] device = "cpu"'
    return Placement("cpu", f"on the CPU: {reason}", advice)


def is_of_gpu(error: Exception) -> bool:
    """Whether an error came from the GPU, so that the CPU may do what was asked for."""
    return any(name in str(error) for name in GPU_ERRORS)


def first_line(error: Exception) -> str:
    """Return what an error says, without the advice to developers that follows."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _with_torch(memory_mb: int) -> Placement:
    """Have torch compute in float32 as on the CPU, the same bits from run to run; an operator that cannot, warns."""
    import torch

    from federation.training.forward import compute_reproducibly, reserve_workspace

    reserve_workspace()
    if torch.version.cuda is None:
        return fallback(f"torch {torch.__version__} has no CUDA", memory_mb)
    try:
        if not torch.cuda.is_available():
            return fallback(f"torch {torch.__version__} finds no usable GPU", memory_mb)
        found = torch.cuda.get_device_properties(0)
        if memory_mb:
            torch.cuda.set_per_process_memory_fraction(min(1.0, (memory_mb << 20) / found.total_memory))
        torch.zeros(1, device="cuda")
    except RuntimeError as error:
        return fallback(f"CUDA can't be initialized: {first_line(error)}", memory_mb)
    compute_reproducibly()
    return Placement("cuda", f"on {found.name}, by torch {torch.__version__} with CUDA {torch.version.cuda}")


def _with_onnx(memory_mb: int) -> Placement:
    """Ask for ONNX Runtime's CUDA provider; whether it loads, a session shows (`TrainingProgram.runs_on_gpu`)."""
    from export.program.runtime import VERSION, has_cuda

    if not has_cuda():
        return fallback(f"ONNX Runtime {VERSION} has no CUDA provider", memory_mb)
    return Placement("cuda", f"on the GPU, by ONNX Runtime {VERSION} with CUDA")


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
