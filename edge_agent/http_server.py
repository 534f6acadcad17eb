"""An HTTP server for small devices, with limits on connections, idle time, and the duration of headers and bodies.

When all places are taken, a new connection replaces the longest idle one of the address with the most connections. So a
client that opens idle connections can't lock out others.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any

from gaitway.threads import SupervisedThread

CONNECTIONS = 16
PER_ADDRESS = 8
"""Connections of one address at a time."""
IDLE_TIMEOUT_S = 10.0
"""Seconds without a byte after which a connection is closed."""
MAX_IDLE_S = 10.0
"""Seconds from a connection's start, or its last response, to the end of the next request's headers."""
MAKE_ROOM_S = 1.0
REQUEST_S = 30.0
"""Seconds for one whole request."""
BLOCK_BYTES = 1 << 16


@dataclass(eq=False)
class _Connection:
    """An open connection, and since when it is without a request; None while one is answered."""

    socket: Any
    address: str
    idle_since: float | None = field(default_factory=time.monotonic)


class BoundedRequest(BaseHTTPRequestHandler):
    """Says when a request's headers are there, and when it is answered: a connection between the two is not closed."""

    server: BoundedServer

    def parse_request(self) -> bool:
        """Read the headers."""
        is_request = super().parse_request()
        self.server.note_busy(self.connection, is_busy=is_request)
        return is_request

    def handle_one_request(self) -> None:
        """Answer one request."""
        super().handle_one_request()
        self.server.note_busy(self.connection, is_busy=False)


class BoundedServer(ThreadingHTTPServer):
    """Runs from `begin` until `close`, at most so many connections at a time."""

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, host: str, port: int, handler: type[BoundedRequest]) -> None:
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        self._open: dict[Any, _Connection] = {}  # the oldest first
        self._guard = threading.Lock()
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), handler)

    def begin(self, name: str) -> None:
        """Serve in a thread of this name."""
        SupervisedThread(name, lambda: self.serve_forever(0.2)).start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        """Bind without asking a name server who we are, as HTTPServer does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to a thread, in the place of an idle one if there are too many, or close it."""
        if not self._make_room(client_address[0]):
            self.shutdown_request(request)
            return
        with self._guard:
            self._open[request] = _Connection(request, client_address[0])
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._forget(request)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def note_busy(self, request: Any, *, is_busy: bool) -> None:
        """Note that a request of a connection has come, or was answered."""
        with self._guard:
            if request in self._open:
                self._open[request].idle_since = None if is_busy else time.monotonic()

    def service_actions(self) -> None:
        """Close connections that have been without a request for too long."""
        with self._guard:
            limit = time.monotonic() - MAX_IDLE_S
            over = [
                connection
                for connection in self._open.values()
                if connection.idle_since is not None and connection.idle_since < limit
            ]
        for connection in over:
            _end(connection.socket)

    def _make_room(self, address: str) -> bool:
        """Take a place for a connection of an address; False if none can be had."""
        with self._guard:
            counts = Counter(connection.address for connection in self._open.values())
            own = address if counts[address] >= PER_ADDRESS else None
            is_full = len(self._open) >= CONNECTIONS
            idle = [
                connection
                for connection in self._open.values()
                if connection.idle_since is not None and own in (None, connection.address)
            ]
            if own is not None or is_full:
                if not idle:
                    return False
                most = max(counts[connection.address] for connection in idle)
                victim = next(connection for connection in idle if counts[connection.address] == most)
                del self._open[victim.socket]  # so that it is not chosen again until its thread has ended
                _end(victim.socket)
        return self._slots.acquire(timeout=MAKE_ROOM_S)

    def _forget(self, request: Any) -> None:
        with self._guard:
            self._open.pop(request, None)
        self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that goes away or speaks no HTTP."""


def _end(connection: socket.socket) -> None:
    """End a connection that another thread reads from; that thread closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def body_length(header: str, max_bytes: int) -> int | None:
    """Read a Content-Length: None if it is no number, more than `max_bytes` if it is too large."""
    if not (header.isascii() and header.isdigit()):
        return None
    return int(header) if len(header) <= 12 else max_bytes + 1


def read_body(file: BufferedIOBase, length: int) -> bytes | None:
    """Read a request's body; None if the other end breaks off, or takes longer than a request may."""
    deadline, parts, left = time.monotonic() + REQUEST_S, [], length
    while left:
        block = file.read1(min(left, BLOCK_BYTES)) if time.monotonic() < deadline else b""
        if not block:
            return None
        parts.append(block)
        left -= len(block)
    return b"".join(parts)
