"""Each of the server's threads is failed in a way that nobody expected; it is heard of, and works again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client

from aggregator_api.core.settings import Settings
from aggregator_api.http.event_feed import ALL, EventFeed
from aggregator_api.notifications.attention import of_server
from aggregator_api.operations.leadership import LeaseLeadership
from aggregator_api.transport.mqtt.client import MqttDriver
from aggregator_api.transport.mqtt.inbox import Inbox
from gaitway import threads
from gaitway.threads import thread_failures
from tests.aggregator_api.bench import Bench, stream_access
from tests.gaitway.failing_work import failing_once

pytestmark = pytest.mark.usefixtures("restarts_at_once")


def inbox_that_fails_once() -> Inbox:
    return Inbox(lambda topic, payload: None, lambda: None, 4, prepare=failing_once(lambda: None, IndexError("a bug")))


def test_messages_are_handled_after_a_failure() -> None:
    handled, inbox = threading.Event(), inbox_that_fails_once()
    inbox.put(handled.set)
    inbox.start()
    assert handled.wait(60)
    assert inbox.alive
    inbox.stop()
    assert not inbox.alive
    assert thread_failures.counts() == {"inbox": 1}


def test_readiness_says_so_while_messages_wait_for_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MIN_PAUSE_S", 3600.0)
    failed = threading.Event()
    monkeypatch.setattr(thread_failures, "record", failing_record(failed))
    inbox = inbox_that_fails_once()
    inbox.start()
    assert failed.wait(60)
    assert not inbox.alive
    inbox.stop()


def failing_record(failed: threading.Event) -> Callable[..., Any]:
    record = thread_failures.record

    def call(*arguments: Any) -> Any:
        failure = record(*arguments)
        failed.set()
        return failure

    return call


def test_leases_are_renewed_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aggregator_api.operations.leadership.POLL_S", 0.001)
    polled = threading.Event()

    def is_healthy() -> bool:
        if threading.current_thread() is not threading.main_thread():
            polled.set()
        return False

    leases: Any = None
    unused = {"gained": lambda name: None, "notified": lambda name: None, "changed": lambda names: None}
    leadership = LeaseLeadership(leases, 10.0, is_healthy=failing_once(is_healthy, IndexError("a bug")), **unused)
    leadership.start()
    assert polled.wait(60)
    leadership.stop()


def test_a_message_with_a_bug_does_not_end_the_connection_to_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Client] = []

    def make(*arguments: Any, **options: Any) -> Client:
        made.append(Client(*arguments, **options))
        return made[0]

    monkeypatch.setattr("aggregator_api.transport.mqtt.client.Client", make)
    MqttDriver(Settings(data_dir=tmp_path), lambda message: None, lambda: None)
    on_message: Any = made[0].on_message
    on_message(made[0], None, None)  # as paho calls it, on a thread that an exception would end
    assert thread_failures.counts() == {"mqtt": 1}


def test_events_are_read_after_a_failure(waiting: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    read = threading.Event()

    def newest(session: object) -> int:
        read.set()
        return 0

    monkeypatch.setattr(
        "aggregator_api.storage.db.repositories.newest_event", failing_once(newest, IndexError("a bug"))
    )

    async def play() -> None:
        closing = threading.Event()
        stream = EventFeed(waiting.runtime.database, closing).changes(ALL, stream_access(waiting.runtime))
        await anext(stream)
        while not read.is_set():
            await asyncio.sleep(0.001)
        closing.set()
        await stream.aclose()

    asyncio.run(asyncio.wait_for(play(), 60))
    assert thread_failures.counts() == {"events": 1}


def test_the_operator_is_told(waiting: Bench) -> None:
    thread_failures.record("inbox", IndexError("a bug"), 2.0)
    with waiting.runtime.database.read() as session:
        items = of_server(session, waiting.runtime.readiness, 0.0)
    assert any("The thread 'inbox' failed once" in item.message for item in items)
    assert b'gaitway_thread_failures_total{thread="inbox"} 1.0' in waiting.runtime.metrics.render()
