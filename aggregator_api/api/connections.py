"""How long a connection may take, and how many there may be: what uvicorn leaves to a proxy.

A client has `header_timeout_s` for a request's headers and `body_timeout_s` for its body, and is cut off if it reads
nothing of an answer for `write_timeout_s`. Connections above `max_connections` are not queued, for half-sent headers
would keep everybody out: those that have waited longest without a whole request make room for them.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from enum import Enum
from typing import ClassVar, NamedTuple, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from aggregator_api.settings import Settings

BACKLOG = 256
"""Connections that the system holds, and that are taken at once before any of them can be refused."""
OTHER_FILES = 2 * BACKLOG
"""Of the files that this process may open, those left for the database, blobs, the broker and a full backlog."""
MAX_HEADER_BYTES = 1 << 16
"""Of a request's line and headers, which the parser itself would take without end."""


class ConnectionLimits(NamedTuple):
    """Seconds, and connections at the same time."""

    header_s: float
    body_s: float
    write_s: float
    max_connections: int


def bounds_of(settings: Settings) -> ConnectionLimits:
    """Return the bounds, with no more connections than this process may have files for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = settings.max_connections if soft == resource.RLIM_INFINITY else max(16, soft - OTHER_FILES)
    most = min(settings.max_connections, files)
    return ConnectionLimits(settings.header_timeout_s, settings.body_timeout_s, settings.write_timeout_s, most)


def bounded_protocol(bounds: ConnectionLimits) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with these bounds over all the connections that it is made for."""

    class Protocol(BoundedProtocol):
        limits = bounds
        waiting: ClassVar[OrderedDict[BoundedProtocol, None]] = OrderedDict()

    return Protocol


class _Phase(Enum):
    WAITING = "for a request's headers"
    BODY = "for its body"
    ANSWERING = "for nothing of the client"


class BoundedProtocol(HttpToolsProtocol):
    """One connection; its phase is looked at whenever something has come or an answer has ended."""

    limits: ConnectionLimits
    waiting: ClassVar[OrderedDict[BoundedProtocol, None]]
    """Connections without a whole request, the one that has waited longest first."""
    _phase: _Phase | None = None
    _body_is_open = False
    _header_bytes = 0
    _cycles: tuple[RequestResponseCycle, ...] = ()  # of requests that were sent without waiting for answers
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._look()
        if len(self.connections) > self.limits.max_connections:
            longest = next(iter(self.waiting))  # at least this one waits
            longest.cut_off()

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self._cycles:  # uvicorn tells the newest request alone, and the one at work would write on
            cycle.disconnected = True
            cycle.message_event.set()
        self._enter(None)
        self._cancel_stalled()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        super().data_received(data)
        self._look()
        if self._phase is _Phase.WAITING and self._header_bytes > MAX_HEADER_BYTES:
            self._end("431 Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        self._body_is_open = True
        super().on_headers_complete()
        if self.cycle is not None:  # none: the client wanted another protocol
            self._cycles = (*(cycle for cycle in self._cycles if not cycle.response_complete), self.cycle)

    def on_message_complete(self) -> None:
        self._body_is_open, self._header_bytes = False, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_stalled()
        self._stalled = self.loop.call_later(self.limits.write_s, self.cut_off)

    def resume_writing(self) -> None:
        self._cancel_stalled()
        super().resume_writing()

    def cut_off(self) -> None:
        """End the connection, whatever it is at."""
        self._enter(None)
        self.connections.discard(self)  # at once, not in the loop's next turn: it counts no more
        if not self.transport.is_closing():
            self.transport.abort()

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        if self._body_is_open:
            self._enter(_Phase.BODY)
        elif self.cycle is None or self.cycle.response_complete:
            self._enter(_Phase.WAITING)
        else:
            self._enter(_Phase.ANSWERING)

    def _enter(self, phase: _Phase | None) -> None:
        if phase is self._phase:
            return  # bytes that trickle in do not put the deadline off
        self._phase = phase
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase in (None, _Phase.ANSWERING):
            self.waiting.pop(self, None)
        else:
            self.waiting.setdefault(self)
        if phase is _Phase.WAITING:
            self._deadline = self.loop.call_later(self._header_s(), self._too_slow)
        elif phase is _Phase.BODY:
            self._deadline = self.loop.call_later(self.limits.body_s, self._too_slow)

    def _header_s(self) -> float:
        """Return how long the next headers may take; between two requests there is uvicorn's `timeout_keep_alive`."""
        idle_s = 0 if self.cycle is None else self.timeout_keep_alive
        return self.limits.header_s + idle_s

    def _too_slow(self) -> None:
        """Say that the time is up where no answer has begun, and end the connection."""
        self._end("408 Request Timeout")

    def _end(self, status: str) -> None:
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
        self._enter(None)
        self.transport.close()

    def _cancel_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
