"""How much memory a device has free, seen from this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
"""Version 2's, as a container sees its own."""


def free_memory(device: str) -> int:
    """Return free bytes of a GPU, or of this machine within the container's limit."""
    if torch.device(device).type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return min(_machine(), _container())


def _machine() -> int:
    if MEMINFO.exists():
        found = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return int(found["MemAvailable"].split()[0]) * 1024
    # macOS does not say what is free
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _container() -> int:
    limit = _text(CGROUP / "memory.max")
    if not limit.isdigit():  # there is none, or "max"
        return sys.maxsize
    usage = dict(line.split() for line in _text(CGROUP / "memory.stat").splitlines())
    return max(0, int(limit) - int(usage.get("anon", 0)))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
