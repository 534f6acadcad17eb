"""How much memory a device has left, and what one client of a stacked chunk takes of it."""

from __future__ import annotations

from typing import Protocol

import torch

SHARE = 0.8
"""Of the free memory that a chunk may fill: what comes later is no longer, but the allocator's blocks may split."""


class Meter(Protocol):
    """Measures a first chunk."""

    def begin(self) -> None:
        """Start to watch the peak."""
        ...

    def room_for(self, count: int) -> int:
        """Say how many clients fit, after `count` of them were trained."""
        ...


class CudaMeter:
    """CUDA's own figures of this process and of the device."""

    def __init__(self, device: str) -> None:
        self.device, self.before = torch.device(device), 0

    def begin(self) -> None:
        """Start to watch the peak."""
        torch.cuda.reset_peak_memory_stats(self.device)
        self.before = torch.cuda.memory_allocated(self.device)

    def room_for(self, count: int) -> int:
        """Say how many clients fit, after `count` of them were trained."""
        per_client = (torch.cuda.max_memory_allocated(self.device) - self.before) / count
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return clients_that_fit(torch.cuda.mem_get_info(self.device)[0] + cached, per_client)


def meter_of(device: str) -> Meter | None:
    """Return a device's meter; None for a CPU, whose memory is not the limit: there larger chunks are slower."""
    return CudaMeter(device) if torch.device(device).type == "cuda" else None


def clients_that_fit(free_bytes: float, bytes_each: float) -> int:
    """Return how many clients a chunk may have."""
    return max(1, int(SHARE * free_bytes / max(bytes_each, 1.0)))


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed: CUDA has an error of its own, the CPU's allocator only words."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
