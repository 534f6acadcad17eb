"""What became of notifications in this process: counted for /metrics, and which way to the operator fails."""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple


class FailedDelivery(NamedTuple):
    """The last notification of a channel, which nobody took."""

    channel: str
    reason: str
    at: float


class DeliveryLog:
    """Outcomes by channel; many threads write."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._failing: dict[str, FailedDelivery] = {}

    def record(self, channel: str, reason: str, at: float) -> None:
        """Note a notification after its last attempt; an empty `reason`: it was taken."""
        with self._lock:
            self._counts[channel, "failed" if reason else "sent"] += 1
            self._failing.pop(channel, None)
            if reason:
                self._failing[channel] = FailedDelivery(channel, reason, at)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many were sent and how many failed, by channel and outcome."""
        with self._lock:
            return dict(self._counts)

    def failing(self) -> list[FailedDelivery]:
        """Return of each channel whose last notification failed that one."""
        with self._lock:
            return list(self._failing.values())


deliveries = DeliveryLog()
