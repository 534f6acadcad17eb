"""Where a training process computes: on the CPU, or on a GPU by CUDA; found out in the process itself, and told.

On the CPU its memory is capped by the kernel. CUDA maps more address space than any cap would leave it, so there the
cap is one of the GPU's memory: torch's allocator and ONNX Runtime's arena keep to it, and the process itself has none.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

from edge_agent.config.training import TrainingDevice
from federation.protocol.messages import Processor, Runtime

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
    advice = 'install a build with CUDA (docs/install-devices.md), or set [training] device = "cpu"'
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
            return fallback(f"torch {torch.__version__} finds no GPU that it can use", memory_mb)
        found = torch.cuda.get_device_properties(0)
        if memory_mb:
            torch.cuda.set_per_process_memory_fraction(min(1.0, (memory_mb << 20) / found.total_memory))
        torch.zeros(1, device="cuda")
    except RuntimeError as error:
        return fallback(f"CUDA cannot be begun: {first_line(error)}", memory_mb)
    compute_reproducibly()
    return Placement("cuda", f"on {found.name}, by torch {torch.__version__} with CUDA {torch.version.cuda}")


def _with_onnx(memory_mb: int) -> Placement:
    """Ask for ONNX Runtime's CUDA provider; whether it loads, a session shows (`TrainingProgram.runs_on_gpu`)."""
    from export.program.runtime import VERSION, has_cuda

    if not has_cuda():
        return fallback(f"ONNX Runtime {VERSION} has no CUDA provider", memory_mb)
    return Placement("cuda", f"on the GPU, by ONNX Runtime {VERSION} with CUDA")
