"""The application behind a real uvicorn on a loopback port, and clients that hold their connections open."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from tests.ports import free_port

RECEIVED = 4096
"""Bytes that a slow client's socket takes before the server has to wait."""


@contextmanager
def served(app: FastAPI, **options: Any) -> Iterator[int]:
    """Serve in a thread of this process, with further `options` of uvicorn, and return the port."""
    port = free_port()
    config = uvicorn.Config(app, port=port, log_config=None, access_log=False, loop="asyncio", **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="uvicorn")
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    try:
        yield port
    finally:
        if hasattr(app.state, "runtime"):
            app.state.runtime.closing.set()
        server.should_exit = True
        thread.join(30)


async def get(port: int, path: str, *headers: str) -> tuple[int, bytes]:
    """Ask on a connection of its own; return the status and what follows the head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close", *headers]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    answer = await reader.read(-1)
    writer.close()
    await writer.wait_closed()
    return int(answer[9:12]), answer.partition(b"\r\n\r\n")[2]


async def open_slowly(port: int, path: str, *headers: str) -> tuple[socket.socket, bytes]:
    """Ask, read the beginning of the answer, and leave the rest; the caller closes the socket."""
    loop = asyncio.get_running_loop()
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED)
    slow.setblocking(False)
    await loop.sock_connect(slow, ("127.0.0.1", port))
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *headers]
    await loop.sock_sendall(slow, "\r\n".join([*lines, "", ""]).encode())
    return slow, await asyncio.wait_for(loop.sock_recv(slow, 512), 30)
