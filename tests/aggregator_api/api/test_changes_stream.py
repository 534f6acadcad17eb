"""The stream of a page: what changed, once in a while, however much it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from aggregator_api.federations.service import get_federation
from aggregator_api.http import event_feed
from aggregator_api.http.event_feed import ALL, EventFeed
from aggregator_api.storage.db import repositories
from tests.aggregator_api.bench import Bench, stream_access
from tests.aggregator_api.generated_devices import FEDERATION


def write(bench: Bench, *kinds: str) -> None:
    with bench.runtime.database.write() as session:
        row = get_federation(session, FEDERATION)
        for kind in kinds:
            repositories.journal(session, row, kind)


async def heard(stream: AsyncIterator[bytes]) -> bytes:
    return await asyncio.wait_for(anext(stream), 60)


@pytest.mark.parametrize("name", [FEDERATION, ALL])
def test_what_came_meanwhile_is_one_message_of_its_subjects(
    waiting: Bench, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "CHANGES_S", 0.3)

    async def follow() -> list[bytes]:
        feed = EventFeed(waiting.runtime.database, waiting.runtime.closing)
        stream = cast("AsyncIterator[bytes]", feed.changes(name, stream_access(waiting.runtime)))
        assert await heard(stream) == b"retry: 3000\n\n"
        first = asyncio.ensure_future(heard(stream))
        while not first.done():  # it begins at the newest event, and tells nothing of those before
            write(waiting, "round.announced")
            await asyncio.wait({first}, timeout=1)
        said = [await first]
        write(waiting, *["device.ready", "update.accepted", "device.training"] * 100)
        while b"device" not in said[-1]:
            said.append(await heard(stream))
        await stream.aclose()
        return said

    *rounds, last = asyncio.run(follow())
    assert set(rounds) == {b"event: changed\ndata: round\n\n"}
    # the round once more where a slow reader has met two of its events apart
    assert last in (b"event: changed\ndata: device update\n\n", b"event: changed\ndata: device round update\n\n")


def test_a_stream_ends_so_that_its_session_is_looked_at_again(waiting: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "CHANGES_LIFE_S", 0.0)

    async def follow() -> list[bytes]:
        feed = EventFeed(waiting.runtime.database, waiting.runtime.closing)
        return [text async for text in feed.changes(FEDERATION, stream_access(waiting.runtime))]

    assert asyncio.run(follow()) == [b"retry: 3000\n\n"]
