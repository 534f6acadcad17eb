"""Connections and their deadlines, without sockets: a transport that notes what is done to it, and no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.http.api.connections import (
    BODY_PART_BYTES,
    MAX_HEADER_BYTES,
    Connection,
    ConnectionLimits,
    Connections,
    RequestPhases,
)

SOON_S = 0.02
LATE_S = 3 * SOON_S
PATIENT_S = 0.4  # which a busy machine doesn't sleep over by itself
LIMITS = ConnectionLimits(header_s=SOON_S, idle_s=0, body_s=SOON_S, write_s=SOON_S, max_connections=3)
HEADER_END = {"type": "http.response.start", "status": 200, "headers": []}
ANSWER_END = {"type": "http.response.body", "body": b"x", "more_body": False}


class Transport(asyncio.Transport):
    """Notes what was written to it and how it ended; closing waits for a client that never reads."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.endings: list[str] = []

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return bool(self.endings)

    def close(self) -> None:
        self.endings.append("closed")

    def abort(self) -> None:
        self.endings.append("aborted")

    async def until_aborted(self) -> None:
        async with asyncio.timeout(30):
            while self.endings[-1:] != ["aborted"]:
                await asyncio.sleep(SOON_S / 4)


class Client:
    """One client's connection, and the state that its requests carry."""

    def __init__(self, others: Connections) -> None:
        self.transport = Transport()
        self.state: dict[str, Any] = {}
        self.connection = Connection(others, self._http)
        self.connection.connection_made(self.transport)

    def _http(self, state: dict[str, Any]) -> asyncio.Protocol:
        self.state = state
        return asyncio.Protocol()

    async def request(self, app: ASGIApp, *headers: tuple[bytes, bytes], body: tuple[Message, ...] = ()) -> None:
        """Have a request answered by `app`; after the messages of its body nothing comes any more."""
        waiting = list(body or ({"type": "http.request", "body": b"", "more_body": False},))

        async def receive() -> Message:
            if waiting:
                return waiting.pop(0)
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            pass

        scope = {"type": "http", "headers": list(headers), "state": dict(self.state)}
        await RequestPhases(app)(scope, receive, send)


def play(course: Callable[[Connections], Awaitable[None]], limits: ConnectionLimits = LIMITS) -> None:
    async def begin() -> None:
        await course(Connections(limits))

    asyncio.run(begin())


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send(HEADER_END)
    await send(ANSWER_END)


async def answer_late(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await asyncio.sleep(LATE_S)
    await answer(scope, receive, send)


def test_headers_have_their_time_and_trickling_bytes_do_not_put_it_off() -> None:
    async def course(connections: Connections) -> None:
        client = Client(connections)
        async with asyncio.timeout(30):
            while not client.transport.endings:
                client.connection.data_received(b"X: y\r\n")
                await asyncio.sleep(SOON_S / 4)
        assert client.transport.written.startswith(b"HTTP/1.1 408 ")
        await client.transport.until_aborted()  # it does not even read that
        assert client.transport.endings == ["closed", "aborted"]

    play(course)


@pytest.mark.parametrize("header", [(b"content-length", b"100"), (b"transfer-encoding", b"chunked")])
def test_a_body_has_its_time(header: tuple[bytes, bytes]) -> None:
    async def course(connections: Connections) -> None:
        client = Client(connections)
        part = {"type": "http.request", "body": b"{", "more_body": True}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(LATE_S):
                await client.request(read_all, header, body=(part,))
        assert client.transport.written.startswith(b"HTTP/1.1 408 ")
        assert client.connection not in connections.open

    async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass

    play(course)


def test_a_large_body_has_its_time_for_each_part_and_trickling_bytes_do_not_put_it_off() -> None:
    async def course(connections: Connections) -> None:
        steady, slow = Client(connections), Client(connections)
        header = (b"content-length", b"999999999")
        tasks = [asyncio.create_task(client.request(read, header)) for client in (steady, slow)]
        await asyncio.sleep(0)
        for _ in range(12):
            steady.connection.data_received(b"x" * BODY_PART_BYTES)
            slow.connection.data_received(b"x")
            await asyncio.sleep(PATIENT_S / 8)
        assert steady.transport.written == b""
        assert slow.transport.written.startswith(b"HTTP/1.1 408 ")
        for task in tasks:
            task.cancel()

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    play(course, LIMITS._replace(body_s=PATIENT_S))


@pytest.mark.parametrize("header", [(b"content-length", b"100"), (b"accept", b"*/*")])
def test_an_answer_has_all_the_time_that_it_needs(header: tuple[bytes, bytes]) -> None:
    async def course(connections: Connections) -> None:
        client = Client(connections)
        await client.request(answer_late, header)
        assert client.transport.endings == []
        assert list(connections.waiting) == [client.connection]
        await client.transport.until_aborted()  # the next request has not come

    play(course)


def test_what_was_answered_but_is_not_read_is_not_kept_for_ever() -> None:
    async def course(connections: Connections) -> None:
        client = Client(connections)

        async def answer_and_close(scope: Scope, receive: Receive, send: Send) -> None:
            await answer(scope, receive, send)
            client.transport.close()  # as uvicorn does after `Connection: close`; the rest waits in the buffer

        await client.request(answer_and_close)
        await client.transport.until_aborted()
        assert client.transport.written == b""

    play(course)


def test_who_stops_reading_is_cut_off_and_who_reads_on_is_not() -> None:
    async def course(connections: Connections) -> None:
        reader, stopped = Client(connections), Client(connections)
        go_on = asyncio.Event()

        async def answer_slowly(scope: Scope, receive: Receive, send: Send) -> None:
            await go_on.wait()

        app = asyncio.gather(reader.request(answer_slowly), stopped.request(answer_slowly))
        await asyncio.sleep(0)
        stopped.connection.pause_writing()
        reader.connection.pause_writing()
        reader.connection.resume_writing()
        await stopped.transport.until_aborted()
        assert stopped.connection not in connections.open
        assert reader.transport.endings == []
        go_on.set()
        await app

    play(course)


def test_one_too_many_makes_the_one_go_that_has_waited_longest() -> None:
    async def course(connections: Connections) -> None:
        answered = Client(connections)
        task = asyncio.create_task(answered.request(answer_late))
        await asyncio.sleep(0)
        half = [Client(connections) for _ in range(3)]
        assert [client.transport.endings for client in (answered, *half)] == [[], ["aborted"], [], []]
        assert len(connections.open) == LIMITS.max_connections
        await task

    play(course)


def test_headers_are_not_taken_without_end_but_bodies_are() -> None:
    async def course(connections: Connections) -> None:
        endless, large = Client(connections), Client(connections)
        task = asyncio.create_task(large.request(answer_late, (b"content-length", b"999999")))
        large.connection.data_received(b"x" * 2 * MAX_HEADER_BYTES)  # headers and body in one piece
        endless.connection.data_received(b"x" * MAX_HEADER_BYTES)
        await asyncio.sleep(0)
        assert endless.transport.written == b""
        endless.connection.data_received(b"x")
        await asyncio.sleep(0)
        assert endless.transport.written.startswith(b"HTTP/1.1 431 ")
        assert large.transport.written == b""
        await task

    play(course)


def test_an_endless_answer_ends_with_its_client() -> None:
    async def course(connections: Connections) -> None:
        client = Client(connections)
        heard: list[Message] = []

        async def stream(scope: Scope, receive: Receive, send: Send) -> None:
            while not heard or heard[-1]["type"] != "http.disconnect":
                heard.append(await receive())

        task = asyncio.create_task(client.request(stream))
        await asyncio.sleep(0)
        client.connection.connection_lost(None)
        await asyncio.wait_for(task, 1)
        assert [message["type"] for message in heard] == ["http.request", "http.disconnect"]
        assert not connections.open
        assert not connections.waiting

    play(course)
