"""Limits on the duration and number of connections, which uvicorn leaves to a proxy.

A client has `header_timeout_s` for a request's headers and `body_timeout_s` for each MiB of its body, and is cut off if
it reads nothing of an answer for `write_timeout_s`. Connections above `max_connections` are not queued, for half-sent
headers would keep everybody out: those that have waited longest without a whole request make room for them.

A `Connection` stands between the socket and uvicorn's protocol and sees bytes; `RequestPhases` stands between
uvicorn and the application and sees requests. Neither needs anything of uvicorn's classes.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.core.settings import Settings

BACKLOG = 256
"""Connections that the system holds, and that are taken at once before any of them can be refused."""
OTHER_FILES = 2 * BACKLOG
"""Of the files that this process may open, those left for the database, blobs, the broker and a full backlog."""
MAX_HEADER_BYTES = 1 << 16
"""Of a request's line and headers, which the parser itself would take without end."""
BODY_PART_BYTES = 1 << 20
"""Of a body, what a client has `body_timeout_s` for: a large one may take long, and one that trickles in may not."""
STATE_KEY = "connection"


class ConnectionLimits(NamedTuple):
    """Seconds, and connections at the same time."""

    header_s: float
    idle_s: float
    body_s: float
    write_s: float
    max_connections: int

    @classmethod
    def of(cls, settings: Settings) -> ConnectionLimits:
        """Return the settings' limits, with no more connections than this process may have files for."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = settings.max_connections if soft == resource.RLIM_INFINITY else max(16, soft - OTHER_FILES)
        return cls(
            settings.header_timeout_s,
            settings.idle_timeout_s,
            settings.body_timeout_s,
            settings.write_timeout_s,
            min(settings.max_connections, files),
        )


class ConnectionPhase(Enum):
    """What a connection waits for."""

    HEADERS = "the client, for a request's headers"
    BODY = "the client, for a request's body"
    ANSWER = "the application"


class Connections:
    """A server's connections: all of them, and those that wait for their clients, the longest first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.open: set[Connection] = set()
        self.waiting: OrderedDict[Connection, None] = OrderedDict()

    def add(self, connection: Connection) -> None:
        """Count a connection, which waits; above the limit, the one that has waited longest is cut off."""
        self.open.add(connection)
        self.waiting[connection] = None
        if len(self.open) > self.limits.max_connections:
            next(iter(self.waiting)).cut_off()

    def remove(self, connection: Connection) -> None:
        """Count a connection no more."""
        self.open.discard(connection)
        self.waiting.pop(connection, None)


class Connection(asyncio.Protocol):
    """Hands everything to the HTTP protocol that `make_http` returns, and ends a connection that takes too long.

    `make_http` gets what shall be in the `state` of each request's ASGI scope.
    """

    def __init__(self, others: Connections, make_http: Callable[[dict[str, Any]], asyncio.Protocol]) -> None:
        self._others, self._limits = others, others.limits
        self._http = make_http({STATE_KEY: self})
        self._loop = asyncio.get_running_loop()
        self._phase = ConnectionPhase.HEADERS
        self._received = 0
        """Bytes of a request's headers, or since a body's deadline was set."""
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._request_ended = asyncio.Event()
        self.answer_has_begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._http.connection_made(transport)
        self._set_deadline(self._limits.header_s)
        self._others.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.remove(self)
        self._cancel_deadlines()
        self._request_ended.set()
        self._http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._http.data_received(data)
        self._received += len(data)
        if self._phase is ConnectionPhase.BODY and self._received >= BODY_PART_BYTES:
            self._enter(ConnectionPhase.BODY, self._limits.body_s)
        elif self._received > MAX_HEADER_BYTES:
            self._loop.call_soon(self._check_header_bytes)  # after the request's task, which may begin just now

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()
        self._write_deadline = self._loop.call_later(self._limits.write_s, self.cut_off)

    def resume_writing(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
        self._http.resume_writing()

    def begin_request(self, has_body: bool) -> asyncio.Event:
        """Continue with a request's body or response; return an event for its completion or the client's departure."""
        self._request_ended = asyncio.Event()
        self.answer_has_begun = False
        if has_body:
            self._enter(ConnectionPhase.BODY, self._limits.body_s)
        else:
            self.end_body()
        return self._request_ended

    def end_body(self) -> None:
        """Wait for the application from now on, without a time limit for the client."""
        self._enter(ConnectionPhase.ANSWER, None)

    def end_answer(self) -> None:
        """Wait for the next request's headers, and until then for the client to read the response."""
        self._request_ended.set()
        self._enter(ConnectionPhase.HEADERS, self._limits.header_s + self._limits.idle_s)

    def cut_off(self) -> None:
        """End the connection, whatever it is at."""
        self._others.remove(self)  # at once, not in the loop's next turn: it counts no more
        self._cancel_deadlines()
        self._transport.abort()

    def _check_header_bytes(self) -> None:
        if self._phase is not ConnectionPhase.BODY and self._received > MAX_HEADER_BYTES:
            self._refuse("431 Request Header Fields Too Large")

    def _refuse(self, status: str) -> None:
        """Say why where no answer has begun, and end the connection."""
        if self._transport.is_closing():
            self.cut_off()  # what was sent before is not read
            return
        if self._phase is ConnectionPhase.HEADERS or not self.answer_has_begun:
            self._transport.write(f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
        self._transport.close()
        self._others.remove(self)
        self._deadline = self._loop.call_later(self._limits.write_s, self.cut_off)  # for a client that does not read

    def _enter(self, phase: ConnectionPhase, deadline_s: float | None) -> None:
        if self not in self._others.open:
            self._request_ended.set()  # what was sent before the end is still answered, for nobody
            return
        self._phase, self._received = phase, 0
        if phase is ConnectionPhase.ANSWER:
            self._others.waiting.pop(self, None)
        else:
            self._others.waiting.setdefault(self)
        self._set_deadline(deadline_s)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        if seconds is not None:
            self._deadline = self._loop.call_later(seconds, self._refuse, "408 Request Timeout")

    def _cancel_deadlines(self) -> None:
        for deadline in (self._deadline, self._write_deadline):
            if deadline is not None:
                deadline.cancel()


class RequestPhases:
    """Tells a `Connection` how far its request is; the outermost of the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and tell when its body is complete and when its answer is."""
        connection: Connection = scope["state"].pop(STATE_KEY)
        ended = connection.begin_request(_has_body(scope))
        body_is_complete = False

        async def receive_body() -> Message:
            nonlocal body_is_complete
            if body_is_complete:  # uvicorn itself would tell only the newest of requests sent without waiting
                await ended.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            body_is_complete = not message.get("more_body", False)
            if body_is_complete and not ended.is_set():
                connection.end_body()
            return message

        async def send_answer(message: Message) -> None:
            if ended.is_set():
                return  # nobody is left to hear it
            connection.answer_has_begun = True
            try:
                await send(message)
            except RuntimeError:  # uvloop's word for a transport that has closed while uvicorn waited for it
                if not ended.is_set():
                    raise
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                connection.end_answer()

        await self._app(scope, receive_body, send_answer)


def _has_body(scope: Scope) -> bool:
    """Whether a request's headers announce a body."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )
