"""How many requests one caller may send: token buckets in bounded memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

MOST = 10_000
"""Buckets in memory; the one that was used longest ago makes room, and a caller that comes back then starts full."""


class TokenBuckets:
    """One bucket per caller: `rate_per_s` tokens flow in, up to `burst`, and each request takes some out."""

    def __init__(self, rate_per_s: float, burst: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate_per_s
        self._burst = burst
        self._clock = clock
        self._lock = Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> tokens, when

    def take(self, caller: str, tokens: float = 1.0) -> float:
        """Take tokens and return 0, or leave them and return the seconds until there are enough."""
        with self._lock:
            now = self._clock()
            held, since = self._buckets.pop(caller, (self._burst, now))
            held = min(self._burst, held + (now - since) * self._rate)
            missing = min(tokens, self._burst) - held
            self._buckets[caller] = (held if missing > 0 else held - tokens, now)
            while len(self._buckets) > MOST:
                self._buckets.popitem(last=False)
        return max(0.0, missing / self._rate)

    def __len__(self) -> int:
        return len(self._buckets)
