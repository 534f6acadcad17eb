"""Threads and tasks that do not end unheard: what they did not expect is logged, counted, and told to whoever asks.

Work that lasts (`SupervisedThread`, `supervised_task`) begins again after a pause that doubles from a second to a
minute; work that is done once (`run_in_thread`) ends, and its owner is told. `thread_failures` is what the process's
status, health checks and metrics read.
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
"""After so long without a failure the pause is short again."""
SHOWN_S = 3600.0
"""A failure is told of for so long."""
MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class ThreadFailure:
    """The last failure of one thread, at `at` in Unix seconds."""

    thread: str
    error: str
    count: int
    at: float
    pause_s: float | None
    """Until its work begins again; None: it does not."""

    def describe(self, now: float) -> str:
        """Say what failed, how often and when, and what follows."""
        times = "once" if self.count == 1 else f"{self.count} times"
        ago_s = max(0.0, now - self.at)
        text = f"The thread {self.thread!r} failed {times}, last {ago_s:.0f} s ago: {self.error}"
        if self.pause_s is None:
            return f"{text}."
        if ago_s < self.pause_s:
            return f"{text}; it starts again in {self.pause_s - ago_s:.0f} s."
        return f"{text}; it was started again."


class ThreadFailures:
    """What has failed in this process, by the thread's name; safe on any thread."""

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
        """Forget everything, as a new process has."""
        with self._lock:
            self._latest.clear()


thread_failures = ThreadFailures()
"""Of this process."""


class Backoff:
    """Pauses between starts: each is twice the one before, until the work has lasted for `STABLE_S`."""

    def __init__(self) -> None:
        self._next_s = MIN_PAUSE_S

    def pause_s(self, lasted_s: float) -> float:
        """Return the pause before the next start, after work that has lasted for so long."""
        if lasted_s >= STABLE_S:
            self._next_s = MIN_PAUSE_S
        pause_s, self._next_s = self._next_s, min(MAX_PAUSE_S, 2 * self._next_s)
        return pause_s


class SupervisedThread:
    """A daemon thread that runs `work` until it returns; after an unexpected exception it runs it again.

    `on_failure` is called on the thread before the pause, `on_restart` after it. Whoever ends the work by a flag of his
    own calls `join`, which also ends a pause.
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
        """Begin."""
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Start the work no more, and wait for what runs; returns at once on the thread itself."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    @property
    def is_working(self) -> bool:
        """Whether it works now; false before its start, in a pause and after its end."""
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
    """Return a callback for another's thread, such as a library's, which an exception of ours would end."""

    def guard(*arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            on_failure(thread_failures.record(name, error))

    return guard


def run_in_thread(
    name: str, work: Callable[[], None], on_failure: Callable[[ThreadFailure], None] = lambda failure: None
) -> threading.Thread:
    """Run work once in a daemon thread; `on_failure` is called there after an exception that it did not expect."""

    thread = threading.Thread(target=guarded(name, work, on_failure), name=name, daemon=True)
    thread.start()
    return thread


def supervised_task(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """Run work as a task of the running event loop; after an unexpected exception it runs again."""

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
