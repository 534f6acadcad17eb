"""Supervised threads and tasks: unexpected exceptions are logged, counted and reported.

Lasting work (`SupervisedThread`, `supervised_task`) restarts after a pause that doubles from one second to a minute.
One-time work (`run_in_thread`) ends, and its owner is notified. The process's status, health checks and metrics read
`thread_failures`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
STABLE_S = 300.0
"""Time without a failure after which the pause is short again."""
SHOWN_S = 3600.0
"""Time for which a failure is reported."""
MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class ThreadFailure:
    """The last failure of one thread, at `at` in Unix seconds."""

    thread: str
    error: str
    count: int
    at: float
    pause_s: float | None
    """Time until the work restarts; None: it doesn't."""

    def describe(self, now: float) -> str:
        """Say what failed, how often and when, and whether it restarts."""
        times = "once" if self.count == 1 else f"{self.count} times"
        ago_s = max(0.0, now - self.at)
        text = f"The thread {self.thread!r} failed {times}, last {ago_s:.0f} s ago: {self.error}"
        if self.pause_s is None:
            return f"{text}."
        if ago_s < self.pause_s:
            return f"{text}; it starts again in {self.pause_s - ago_s:.0f} s."
        return f"{text}; it was started again."


class ThreadFailures:
    """Failures of this process by thread name; safe on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[str, ThreadFailure] = {}

    def record(self, thread: str, error: BaseException, pause_s: float | None = None) -> ThreadFailure:
        """Log a failure with its traceback, and remember it."""
        text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
        after = "" if pause_s is None else f"; it starts again in {pause_s:g} s"
        log.error("thread %s failed unexpectedly%s", thread, after, exc_info=error)
        with self._lock:
            before = self._latest.get(thread)
            count = before.count + 1 if before else 1
            failure = self._latest[thread] = ThreadFailure(thread, text, count, time.time(), pause_s)
        return failure

    def counts(self) -> dict[str, int]:
        """Return how often each thread that ever failed has failed."""
        with self._lock:
            return {name: failure.count for name, failure in self._latest.items()}

    def recent(self) -> list[ThreadFailure]:
        """Return the failures of the last hour, the newest first."""
        now = time.time()
        with self._lock:
            failures = [failure for failure in self._latest.values() if now - failure.at < SHOWN_S]
        return sorted(failures, key=lambda failure: failure.at, reverse=True)

    def describe(self) -> list[str]:
        """Return a sentence for each failure of the last hour."""
        now = time.time()
        return [failure.describe(now) for failure in self.recent()]

    def clear(self) -> None:
        """Forget all failures."""
        with self._lock:
            self._latest.clear()


thread_failures = ThreadFailures()
"""The failures of this process."""


class Backoff:
    """Pauses between starts: each is twice the previous one, until the work has run for `STABLE_S`."""

    def __init__(self) -> None:
        self._next_s = MIN_PAUSE_S

    def pause_s(self, lasted_s: float) -> float:
        """Return the pause before the next start, given how long the work ran."""
        if lasted_s >= STABLE_S:
            self._next_s = MIN_PAUSE_S
        pause_s, self._next_s = self._next_s, min(MAX_PAUSE_S, 2 * self._next_s)
        return pause_s


class SupervisedThread:
    """A daemon thread that runs `work` until it returns; after an unexpected exception it runs it again.

    `on_failure` is called on the thread before the pause, `on_restart` after it. To end the work by your own flag, set
    it and call `join`, which also ends a pause.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        *,
        on_failure: Callable[[ThreadFailure], None] = lambda failure: None,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._work = name, work
        self._on_failure, self._on_restart = on_failure, on_restart
        self._ended = threading.Event()
        self._is_paused = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Stop restarting, and wait for the running work; return at once on the thread itself."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    @property
    def is_working(self) -> bool:
        """Whether the work is running: False before the start, in a pause and after the end."""
        return self._thread.is_alive() and not self._is_paused

    def _run(self) -> None:
        backoff = Backoff()
        while True:
            began_s = time.monotonic()
            try:
                self._work()
            except Exception as error:
                pause_s = backoff.pause_s(time.monotonic() - began_s)
                self._is_paused = True
                self._on_failure(thread_failures.record(self._name, error, pause_s))
                if self._ended.wait(pause_s):
                    return
                self._is_paused = False
                self._on_restart()
            else:
                return


def guarded(
    name: str, call: Callable[..., None], on_failure: Callable[[ThreadFailure], None] = lambda failure: None
) -> Callable[..., None]:
    """Return a callback for a foreign thread, such as a library's, that our exceptions would end."""

    def guard(*arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            on_failure(thread_failures.record(name, error))

    return guard


def run_in_thread(
    name: str, work: Callable[[], None], on_failure: Callable[[ThreadFailure], None] = lambda failure: None
) -> threading.Thread:
    """Run work once in a daemon thread, which calls `on_failure` after an unexpected exception."""

    thread = threading.Thread(target=guarded(name, work, on_failure), name=name, daemon=True)
    thread.start()
    return thread


def supervised_task(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """Run work as a task of the running event loop, and restart it after an unexpected exception."""

    async def run() -> None:
        backoff, loop = Backoff(), asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                await work()
            except Exception as error:
                pause_s = backoff.pause_s(loop.time() - began_s)
                thread_failures.record(name, error, pause_s)
                await asyncio.sleep(pause_s)
            else:
                return

    return asyncio.get_running_loop().create_task(run(), name=name)
