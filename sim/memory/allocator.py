"""glibc's memory for training steps: kept instead of given back to the kernel and asked for anew."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE = (1 << 31) - 1
_LARGEST_BLOCK = 1 << 30


def keep_freed_memory() -> bool:
    """Let this process and its forks reuse freed blocks of any size; return whether the C library can.

    A step of a network of a million parameters frees and takes megabytes: their page faults were up to a tenth of the
    time of a client's round. What a process holds stays at its peak.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)) and bool(mallopt(_TRIM_THRESHOLD, _LARGE))
