"""This process's counters and timings, for metrics, the audit log and the operator: deliveries, refusals, durations.

Refused requests in the audit: what comes without a good key as one entry an address and minute, with its count.
So whoever tries keys or passwords leaves a trace, and neither fills the disk nor makes writers wait: of each minute
there is one entry for each of `ADDRESSES` addresses and an action, and one for all the others together. What a caller
with a good key was refused is written at once, its repeats within a minute as another entry with their count. A killed
server loses the counts of its last minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import NamedTuple

from prometheus_client import Histogram
from sqlalchemy.exc import SQLAlchemyError

from aggregator_api.auth.callers import network
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.audit import Intent
from aggregator_api.storage.db.database import Database

log = logging.getLogger(__name__)


class FailedDelivery(NamedTuple):
    """A channel's last failed notification."""

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


WINDOW_S = 60.0
ADDRESSES = 32
MANY = "many addresses"


@dataclass
class _Repeats:
    since: float
    latest: Intent
    count: int  # that are not written yet


class RefusalLog:
    """Counts refusals, and writes them to the audit log."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = Lock()
        self._seen: dict[tuple[str, str], _Repeats] = {}

    def note(self, refused: Intent) -> None:
        """Write a refusal down, or count it; a database that does not take it costs the entry, not the answer."""
        self.flush()
        with self._lock:
            is_first, refused = self._count(refused, 0)
        if is_first:
            self._write([(refused, 1)])

    def count(self, refused: Intent) -> None:
        """Count a refusal for an entry at the end of its minute; nothing is written here, so nobody waits for it."""
        with self._lock:
            self._count(refused, 1)

    def flush(self, *, closing: bool = False) -> None:
        """Write the counts whose minute is over, or all."""
        with self._lock:
            now = self._clock()
            over = [key for key, refusals in self._seen.items() if closing or now - refusals.since >= WINDOW_S]
            done = [self._seen.pop(key) for key in over]
        self._write([(refusals.latest, refusals.count) for refusals in done if refusals.count])

    def _count(self, refused: Intent, first: int) -> tuple[bool, Intent]:
        """Count a refusal, the first of its minute as `first`; return whether it is that, and what it is counted as."""
        key = network(refused.address), refused.action
        if key not in self._seen and sum(action == refused.action for _, action in self._seen) >= ADDRESSES:
            key, refused = (MANY, refused.action), replace(refused, address=MANY)
        known = self._seen.get(key)
        if known is None:
            self._seen[key] = _Repeats(self._clock(), refused, first)
        else:
            known.count, known.latest = known.count + 1, refused
        return known is None, refused

    def _write(self, entries: list[tuple[Intent, int]]) -> None:
        if not entries:
            return
        try:
            with self._database.write() as session:
                for intent, count in entries:
                    audit.write(session, intent, count=count)
        except SQLAlchemyError as error:
            log.error("refusals not recorded in the audit count=%d: %s", len(entries), error)


AGGREGATION_SECONDS = Histogram(
    "gaitway_aggregation_seconds",
    "from a round's last update to its new model, as the aggregation itself took",
    buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0),
    registry=None,
)
MESSAGE_SECONDS = Histogram(
    "gaitway_message_seconds",
    "to handle one message of a device, its writes to disk and database included",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0),
    registry=None,
)
