"""An HTTP server for a small device: a bound on connections, on silence, and on how long a body may take."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any

CONNECTIONS = 16
SILENCE_S = 10.0
"""Without a byte, after which a connection is closed."""
REQUEST_S = 30.0
"""For one whole request, whatever its pace."""
BLOCK_BYTES = 1 << 16


class BoundedServer(ThreadingHTTPServer):
    """Runs from `begin` until `close`, at most so many connections at a time."""

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), handler)

    def begin(self, name: str) -> None:
        """Serve in a thread of this name."""
        threading.Thread(target=self.serve_forever, args=(0.2,), name=name, daemon=True).start()

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
        """Hand a connection to a thread, or close it if there are too many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._slots.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or speaks no HTTP, is none of our trouble."""


def body_length(header: str, most_bytes: int) -> int | None:
    """Read a Content-Length: None if it is no number, more than `most_bytes` if it is too large."""
    if not (header.isascii() and header.isdigit()):
        return None
    return int(header) if len(header) <= 12 else most_bytes + 1


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
