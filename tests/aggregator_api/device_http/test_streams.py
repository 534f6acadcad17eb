"""Streams without sockets: what waits for a device is bounded, and comes in an order that it can use."""

from __future__ import annotations

import asyncio
import threading

from aggregator_api.transport.device_http.streams import MAX_QUEUED_ANSWERS, DeviceStreams
from federation.protocol import topics
from federation.protocol.over_http import END, EventReader, ServerEvent, kinds_of, path_of, stream_path, write_event
from federation.protocol.signing import Kind


async def nothing() -> list[tuple[Kind, bytes]]:
    return []


def events(pieces: list[bytes]) -> list[ServerEvent]:
    reader = EventReader()
    found = (reader.take(line + b"\n") for line in b"".join(pieces).split(b"\n"))
    return [event for event in found if event]


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_reader_that_was_slow_gets_the_newest_of_what_is_retained_and_the_last_answers() -> None:
    async def play() -> list[ServerEvent]:
        hub = DeviceStreams(threading.Event(), most=10)
        stream = hub.stream("f", "d", "key", "", nothing)
        await anext(stream)  # it has begun, and reads no further
        for n in range(1000):
            hub.publish(topics.announce("f"), b"all %d" % n, retain=True)
            hub.publish(topics.invitation("f", "d"), b"to d %d" % n, retain=True)
            hub.publish(topics.invitation("f", "e"), b"to e", retain=True)
            hub.publish(topics.ack("f", "d"), b"answer %d" % n)
            hub.publish(topics.announce("g"), b"elsewhere", retain=True)
        found = await anext(stream)
        await stream.aclose()
        return events([found])

    said = asyncio.run(play())
    assert [(e.name, e.data) for e in said if e.name != Kind.ACKNOWLEDGEMENT] == [
        (Kind.INVITATION, b"to d 999"),
        (Kind.ANNOUNCEMENT, b"all 999"),  # the last: it tells what the others mean
    ]
    answers = [e.data for e in said if e.name == Kind.ACKNOWLEDGEMENT]
    assert answers == [b"answer %d" % n for n in range(1000 - MAX_QUEUED_ANSWERS, 1000)]
    assert [bool(e.id) for e in said] == [False] * (len(said) - 1) + [True]  # what breaks off is sent again whole


def test_what_is_retained_begins_a_stream_unless_something_newer_was_said_meanwhile() -> None:
    hub = DeviceStreams(threading.Event(), most=10)

    async def late() -> list[tuple[Kind, bytes]]:
        hub.publish(topics.invitation("f", "d"), b"round 2", retain=True)
        return [(Kind.INVITATION, b"round 1"), (Kind.OFFER, b"rollout 1")]

    async def play() -> list[ServerEvent]:
        stream = hub.stream("f", "d", "key", "", late)
        found = [await anext(stream), await anext(stream)]
        await stream.aclose()
        return events(found)

    assert [event.data for event in asyncio.run(play())] == [b"round 2", b"rollout 1"]


def test_a_stream_ends_by_itself_and_who_does_not_come_back_is_gone_once() -> None:
    clock = Clock()
    hub = DeviceStreams(threading.Event(), most=10, lifetime_s=60.0, clock=clock)

    async def play() -> list[ServerEvent]:
        stream = hub.stream("f", "d", "key", "", nothing)
        found = [await anext(stream)]
        clock.now = 61.0
        found += [piece async for piece in stream]
        return events(found)

    assert asyncio.run(play()) == [("", END, b"lifetime")]
    assert (hub.gone(), len(hub)) == ([], 0)
    clock.now += 10
    assert hub.gone() == [("f", "d")]
    hub.forget("f", "d")
    assert hub.gone() == []


def test_a_federation_that_another_process_leads_loses_its_streams_and_nobody_is_offline_by_it() -> None:
    clock = Clock()
    hub = DeviceStreams(threading.Event(), most=10, clock=clock)
    hub.publish(topics.announce("f"), b"all", retain=True)

    async def play() -> list[ServerEvent]:
        stream = hub.stream("f", "d", "key", "", nothing)
        found = [await anext(stream), await anext(stream)]
        hub.listen(frozenset({"g"}))
        found += [piece async for piece in stream]
        return events(found)

    assert asyncio.run(play())[-1][1:] == (END, b"moved")
    clock.now = 1e6
    assert hub.gone() == []
    assert not hub.announces("f")


def test_paths_follow_topics_and_a_signed_message_keeps_its_bytes() -> None:
    assert path_of(topics.update("f", "d", "u", "chunk", 7)) == "/v1/federations/f/devices/d/update/u/chunk/7"
    assert stream_path("f", "d") == "/v1/federations/f/devices/d/messages"
    assert kinds_of("f", "d")[topics.ack("f", "d")] is Kind.ACKNOWLEDGEMENT
    sent = ServerEvent("a-1", "notice", b'gaitway-signed/1 AAAA\n{"reason": "\xc3\xa9 \xe2\x80\xa8"}')
    written = write_event(sent)
    assert (
        written == b'id: a-1\nevent: notice\ndata: gaitway-signed/1 AAAA\ndata: {"reason": "\xc3\xa9 \xe2\x80\xa8"}\n\n'
    )
    assert events([b": comment\nretry: 5\n", written.replace(b"\n", b"\r\n")]) == [sent]
