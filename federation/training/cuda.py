"""CUDA as everything here expects it: float32 as on the CPU, and the same bits from run to run."""

from __future__ import annotations

import os

import torch

CUBLAS_WORKSPACE, DETERMINISTIC_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""Without it a product's sums may be in another order in another run (NVIDIA, cuBLAS: Results Reproducibility)."""


def reserve_workspace() -> None:
    """Ask cuBLAS for sums in one order; it reads this when CUDA begins, so call this before."""
    os.environ.setdefault(CUBLAS_WORKSPACE, DETERMINISTIC_WORKSPACE)


def compute_reproducibly() -> None:
    """Have this process compute in float32, always by the same algorithms; an operator that has none warns."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    # fresh memory is written before it is read; to fill it too would cost a kernel for each tensor
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
