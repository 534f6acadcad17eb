"""Threads that fail are heard of, and begin again; and no thread or task of ours is made in another way."""

from __future__ import annotations

import ast
import asyncio
import re
import threading
import time

import pytest

from gaitway import threads
from gaitway.threads import Backoff, SupervisedThread, ThreadFailure, guarded, run_in_thread, thread_failures
from tests.repository.imports import PACKAGES, REPOSITORY

WAIT_S = 60.0

MAKES_WORK = re.compile("Thread|Timer|create_task|ensure_future|ThreadPoolExecutor|start_new_thread")
MADE_ELSEWHERE = {
    # whoever asked waits for the task's answer, and gets its exception
    "aggregator_api/http/api/middleware/concurrency.py": {"create_task"},
    # its exception is read in a callback, and the next request looks the key up itself
    "aggregator_api/auth/callers.py": {"create_task"},
    # futures whose jobs catch what they did not expect and fail the round with it
    "aggregator_api/runtime.py": {"ThreadPoolExecutor"},
    "aggregator_api/rounds/aggregation.py": {"ThreadPoolExecutor"},
    # its job logs what it did not expect, and the next start tries again
    "aggregator_api/federations/programs.py": {"ThreadPoolExecutor"},
    # it shuts a connection whose time is up, and catches what that may raise
    "aggregator_api/notifications/channels.py": {"Timer"},
    # it prints a line, and sends a signal: before the program is loaded, and where Python has lost an interrupt
    "gaitway/interrupts.py": {"Thread", "Timer"},
}


pytestmark = pytest.mark.usefixtures("restarts_at_once")


def test_work_that_fails_begins_again_until_it_returns() -> None:
    heard: list[ThreadFailure] = []
    restarts: list[int] = []
    tries = iter((ValueError("first"), KeyError("second"), None))
    done = threading.Event()

    def work() -> None:
        if (error := next(tries)) is not None:
            raise error
        done.set()

    thread = SupervisedThread("work", work, on_failure=heard.append, on_restart=lambda: restarts.append(1))
    thread.start()
    assert done.wait(WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_working
    assert [failure.error for failure in heard] == ["ValueError: first", "KeyError: 'second'"]
    assert heard[1].pause_s == 2 * heard[0].pause_s if heard[0].pause_s else False
    assert len(restarts) == 2
    assert thread_failures.counts() == {"work": 2}
    (sentence,) = thread_failures.describe()
    assert sentence.startswith("The thread 'work' failed 2 times, last 0 s ago: KeyError: 'second'")


def test_join_ends_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MIN_PAUSE_S", 3600.0)
    failed = threading.Event()

    def work() -> None:
        raise RuntimeError("broken")

    thread = SupervisedThread("work", work, on_failure=lambda failure: failed.set())
    thread.start()
    assert failed.wait(WAIT_S)
    assert not thread.is_working
    thread.join(WAIT_S)
    assert thread_failures.counts() == {"work": 1}


def test_a_thread_that_was_never_started_can_be_joined() -> None:
    SupervisedThread("work", lambda: None).join()


def test_pauses_double_to_a_minute_and_are_short_again_after_good_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MIN_PAUSE_S", 1.0)
    backoff = Backoff()
    assert [backoff.pause_s(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [backoff.pause_s(threads.STABLE_S), backoff.pause_s(0.0)] == [1, 2]


def test_work_that_is_done_once_tells_its_owner() -> None:
    heard: list[ThreadFailure] = []

    def work() -> None:
        raise ZeroDivisionError("1 / 0")

    run_in_thread("once", work, heard.append).join(WAIT_S)
    assert [failure.error for failure in heard] == ["ZeroDivisionError: 1 / 0"]
    assert heard[0].pause_s is None


def test_a_callback_of_a_library_does_not_end_the_librarys_thread() -> None:
    def callback(*_: object) -> None:
        raise KeyError("message")

    guarded("mqtt", callback)("client", None, "message")
    assert thread_failures.counts() == {"mqtt": 1}


def test_a_task_that_fails_begins_again() -> None:
    tries = iter((True, True, False))

    async def work() -> None:
        if next(tries):
            raise ValueError("broken")

    async def play() -> None:
        await asyncio.wait_for(threads.supervised_task("task", work), WAIT_S)

    asyncio.run(play())
    assert thread_failures.counts() == {"task": 2}


def test_a_cancelled_task_ends() -> None:
    async def play() -> None:
        task = threads.supervised_task("task", lambda: asyncio.sleep(3600))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    assert not thread_failures.counts()


def test_what_follows_a_failure_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    waiting = ThreadFailure("sensors", "ValueError: x", 1, now - 10, 30.0)
    assert (
        waiting.describe(now)
        == "The thread 'sensors' failed once, last 10 s ago: ValueError: x; it starts again in 20 s."
    )
    assert waiting.describe(now + 60).endswith("it was started again.")
    assert ThreadFailure("download", "KeyError: 'x'", 1, now, None).describe(now).endswith("KeyError: 'x'.")
    monkeypatch.setattr(threads, "SHOWN_S", 0.0)
    thread_failures.record("old", ValueError("old"))
    assert not thread_failures.recent()


def test_every_thread_and_task_is_supervised() -> None:
    """No `Thread`, pool or task is made beside `gaitway.threads`, but for those whose exceptions somebody gets."""
    made: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            source = path.read_text()
            if not MAKES_WORK.search(source):
                continue
            calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
            found = {ast.unparse(node.func).rpartition(".")[2] for node in calls}
            found = {name for name in found if MAKES_WORK.fullmatch(name)}
            if found and path.name != "threads.py":
                made[str(path.relative_to(REPOSITORY))] = found
    assert made == MADE_ELSEWHERE
