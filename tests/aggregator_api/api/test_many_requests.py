"""Equal reads are worked on once and never answered with an older state; too many requests are told to come again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from aggregator_api.http.api.middleware import concurrency
from aggregator_api.http.api.middleware.concurrency import Coalescing, ConcurrencyLimit
from aggregator_api.http.event_feed import EventFeed
from aggregator_api.http.queries import listings
from tests.aggregator_api.bench import Bench, stream_access
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan


def test_a_read_joins_only_work_that_has_not_begun() -> None:
    async def play() -> tuple[list[int], int]:
        answers = Coalescing[int]()
        state, calls = 1, 0
        go_on = asyncio.Event()

        async def work() -> int:
            nonlocal calls
            calls += 1
            seen = state
            await go_on.wait()
            return seen

        first = [asyncio.create_task(answers.get("k", work)) for _ in range(3)]
        await asyncio.sleep(0.01)
        state = 2  # somebody has written: who asks from now on must see it
        later = [asyncio.create_task(answers.get("k", work)) for _ in range(3)]
        await asyncio.sleep(0.01)
        later.pop().cancel()  # who gives up takes nothing from the others
        go_on.set()
        return await asyncio.gather(*first, *later), calls

    assert asyncio.run(play()) == ([1, 1, 1, 2, 2], 2)


def test_who_asks_alone_waits_for_no_rest_and_a_crowd_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "MAX_PAUSE_S", 30.0)
    monkeypatch.setattr(concurrency, "PAUSE_FACTOR", 1e9)

    async def play() -> None:
        answers = Coalescing[int]()

        async def work() -> int:
            await asyncio.sleep(0.001)
            return 3

        for _ in range(5):
            assert await asyncio.wait_for(answers.get("k", work), 5) == 3
        assert await asyncio.gather(*(answers.get("k", work) for _ in range(2))) == [3, 3]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(answers.get("k", work), 0.1)

    asyncio.run(play())


def test_an_error_is_everybodys_and_forgotten() -> None:
    async def play() -> None:
        answers = Coalescing[int]()

        async def fail() -> int:
            raise ValueError("no")

        async def work() -> int:
            return 3

        asked = [answers.get("k", fail) for _ in range(2)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(each) for each in found] == ["no", "no"]
        assert await answers.get("k", work) == 3

    asyncio.run(play())


def scope(method: str = "GET") -> Scope:
    return {"type": "http", "method": method, "path": "/v1/federations"}


class Slow:
    """An application that answers when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)  # a client that reads slowly


async def status_of(app: ConcurrencyLimit, method: str = "GET") -> Message:
    found: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        if not found.done():
            found.set_result(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    task = asyncio.create_task(app(scope(method), receive, send))
    try:
        return await found
    finally:
        task.cancel()


def test_one_request_too_many_is_told_when_to_come_again() -> None:
    async def play() -> None:
        slow = Slow()
        app = ConcurrencyLimit(slow, at_once=1, waiting=1, wait_s=30)
        begun, waiting = (asyncio.create_task(status_of(app)) for _ in range(2))
        await asyncio.sleep(0.01)
        refused = await status_of(app)
        assert refused["status"] == 503
        assert (b"retry-after", b"1") in refused["headers"]
        writer = asyncio.create_task(status_of(app, "POST"))  # readers take nothing from writers
        slow.go_on.set()
        found = await asyncio.wait_for(asyncio.gather(begun, waiting, writer), 5)
        assert [each["status"] for each in found] == [200, 200, 200]

    asyncio.run(play())


def test_who_waits_too_long_is_told_so() -> None:
    async def play() -> Message:
        app = ConcurrencyLimit(Slow(), at_once=1, waiting=5, wait_s=0.05)
        begun = asyncio.create_task(status_of(app))
        await asyncio.sleep(0.01)
        answer = await status_of(app)
        begun.cancel()
        return answer

    assert asyncio.run(play())["status"] == 503


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path, tiny_plan())
    yield found
    found.runtime.stop()


def test_streams_share_one_reader_and_miss_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    events = listings.events

    def counted(*given: Any) -> Any:
        nonlocal reads
        reads += 1
        return events(*given)

    monkeypatch.setattr(listings, "events", counted)

    access = stream_access(bench.runtime)

    async def follow(feed: EventFeed) -> list[str]:
        text = ""
        async with aclosing(feed.stream(FEDERATION, 0, access)) as source:
            while "round.collecting" not in text and "round.opened" not in text:
                text += (await anext(source)).decode()
        return [line for line in text.splitlines() if line.startswith("id: ")]

    async def play() -> list[list[str]]:
        feed = EventFeed(bench.runtime.database, bench.runtime.closing)
        streams = [asyncio.create_task(follow(feed)) for _ in range(20)]
        await asyncio.sleep(1)
        before, began = reads, time.monotonic()
        await asyncio.sleep(1)
        assert reads - before <= 8 * (time.monotonic() - began)  # four times a second, however many follow
        for device in "ab":
            await asyncio.to_thread(bench.say, device, "ready")
        return await asyncio.wait_for(asyncio.gather(*streams), 30)

    found = asyncio.run(play())
    assert found[0] == sorted(set(found[0]), key=lambda line: int(line[4:]))
    assert all(each[: len(found[0])] == found[0][: len(each)] for each in found)
