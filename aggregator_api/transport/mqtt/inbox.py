"""A bounded queue between the network thread, which must never wait for a disk, and the worker thread."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from aggregator_api.storage.outages import TEMPORARY, Outage, failures
from gaitway.threads import SupervisedThread

log = logging.getLogger(__name__)

TICK_S = 0.25
STOP_S = 1.0
"""How long a server that stops works off its queue; brokers and devices send the rest of it again."""
RETRY_S = 1.0
"""While the database is away, a message is tried again so often."""


class Message(NamedTuple):
    """One message and how to tell the broker that it is safe."""

    topic: str
    payload: bytes
    acknowledge: Callable[[], None]
    retained: bool = False


class Inbox:
    """Hands messages to `handle`, calls to their maker, and calls `tick` a few times a second.

    `prepare` is called first, on the thread that works. When the queue is full, `put` waits: the network's thread then
    reads no more, and TCP makes the broker wait. So it is while the database is away: the message that met the outage
    is held until it can be handled, and `recovered` is called once a tick works again.
    """

    def __init__(
        self,
        handle: Callable[[str, bytes], None],
        tick: Callable[[], None],
        size: int,
        prepare: Callable[[], None] = lambda: None,
        recovered: Callable[[], None] = lambda: None,
    ) -> None:
        self._handle = handle
        self._tick = tick
        self._prepare = prepare
        self._recovered = recovered
        self._outage = False
        self._stopping = threading.Event()
        self._stop_at = math.inf
        self._queue: queue.Queue[Message | Callable[[], None] | None] = queue.Queue(size)
        self._thread = SupervisedThread("inbox", self._work)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is in the queue within `STOP_S` and end; a start that failed has nothing to end.

        In an outage nothing is finished: the broker has not been told that it was, and sends it again.
        """
        self._stop_at = time.monotonic() + STOP_S
        self._stopping.set()
        self.offer(None)  # wakes a thread that waits; one with a full queue sees that it is over
        self._thread.join()

    def put(self, work: Message | Callable[[], None]) -> None:
        """Queue a message, or something to call."""
        self._queue.put(work)

    def offer(self, work: Callable[[], None] | None) -> bool:
        """Queue something to call unless the queue is full, without waiting; return whether there was room."""
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            return False
        return True

    @property
    def waiting(self) -> int:
        """How much waits to be done."""
        return self._queue.qsize()

    @property
    def alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_working

    def _work(self) -> None:
        self._prepare()
        due = time.monotonic()
        while not (self._stopping.is_set() and time.monotonic() >= self._stop_at):
            if time.monotonic() >= due:  # also under load: a deadline must not wait for a quiet moment
                self._tick_once()
                due = time.monotonic() + TICK_S
            try:
                work = self._queue.get(timeout=TICK_S)
            except queue.Empty:
                continue
            if work is None:
                return
            self._do(work)

    def _tick_once(self) -> None:
        if self._guard(self._tick) is None and self._outage:
            self._outage = False
            log.info("database available again")
            self._guard(self._recovered)

    def _do(self, work: Message | Callable[[], None]) -> None:
        call = partial(self._handle, work.topic, work.payload) if isinstance(work, Message) else work
        while self._guard(call) in TEMPORARY:
            if self._stopping.wait(RETRY_S):
                return
        if isinstance(work, Message):
            # even after another failure: unacknowledged, it would block the broker's window, and its device repeats it
            self._guard(work.acknowledge)

    def _guard(self, call: Callable[[], None]) -> Outage | None:
        try:
            call()
        except Exception as error:
            # what is wrong with one message costs this message, which its device repeats, not the server
            outage = failures.report("message not handled", error)
            self._outage = self._outage or outage in TEMPORARY
            return outage
        return None
