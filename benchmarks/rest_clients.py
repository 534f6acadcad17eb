"""Many clients of the REST interface in one cheap process: those who ask, those who download slowly, those who follow.

    python benchmarks/rest_clients.py --server 127.0.0.1:8080 --key-file keys --ask /v1/federations/load --out got.json

It runs until SIGTERM and then writes what it measured. Askers keep their connections. `--rate R`: all of them together
ask R times a second at times that are set beforehand, and a late answer counts from the time it should have been
asked for. `--rate 0`: each asks again as soon as it is answered, so that as many requests as askers are always open.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
RECEIVED = 4096
"""Socket buffer of a slow download, so that the kernel does not take the model in the client's place."""
READ_EVERY_S = 0.5
PROBE_EVERY_S = 0.1
PROBES = 5
LAG_EVERY_S = 0.02


class Connection(asyncio.Protocol):
    """What all three have: a request, and a word to the fleet when the connection ends before its time."""

    def __init__(self, fleet: Fleet, path: str) -> None:
        self.fleet, self.path = fleet, path
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Keep the transport and ask."""
        self.transport = transport
        self.begin()

    def begin(self) -> None:
        """Send the request."""
        self.ask(self.path)

    def ask(self, path: str) -> None:
        """Send a GET."""
        key = random.choice(self.fleet.keys)
        head = f"GET {path} HTTP/1.1\r\nHost: {self.fleet.host}\r\nAuthorization: Bearer {key}\r\n\r\n"
        self.transport.write(head.encode())

    def connection_lost(self, error: Exception | None) -> None:
        """Count it, unless everything is over."""
        if not self.fleet.over.is_set():
            self.fleet.lost[type(self).__name__] += 1


class Asker(Connection):
    """Asks one question after the other on one connection."""

    def begin(self) -> None:
        """Wait for the first turn."""
        self.buffer = bytearray()
        self.answers, self.period_s = self.fleet.answers, self.fleet.period_s
        self.due = time.perf_counter() + random.random() * self.period_s
        asyncio.get_running_loop().call_later(self.due - time.perf_counter(), self.next)

    def next(self) -> None:
        """Ask now."""
        if self.period_s == 0:
            self.due = time.perf_counter()
        self.ask(self.path or random.choice(self.fleet.paths))

    def data_received(self, data: bytes) -> None:
        """Note a whole answer, and when the next question is due."""
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        length = LENGTH.search(self.buffer, 0, end)
        if length is None or len(self.buffer) < end + 4 + int(length[1]):
            return
        now = time.perf_counter()
        self.answers.append((time.time(), now - self.due, int(self.buffer[9:12])))
        del self.buffer[: end + 4 + int(length[1])]
        self.due = max(self.due + self.period_s, now - 10)
        asyncio.get_running_loop().call_later(max(0.0, self.due - now), self.next)


class Probe(Asker):
    """Asks for what the server answers without any work: what is waited for is its event loop, and this program."""

    def begin(self) -> None:
        """Go round by itself."""
        super().begin()
        self.answers, self.period_s = self.fleet.probes, PROBE_EVERY_S


class Download(Connection):
    """Reads a large model a little at a time."""

    def data_received(self, data: bytes) -> None:
        """Take a little, and rest."""
        self.fleet.downloaded += len(data)
        self.transport.pause_reading()
        asyncio.get_running_loop().call_later(READ_EVERY_S, self.transport.resume_reading)


class Stream(Connection):
    """Follows the events of the federation."""

    def begin(self) -> None:
        """Ask for all of them, from the first one on."""
        self.events, self.tail = 0, b""
        self.fleet.streams.append(self)
        self.ask(self.path)

    def data_received(self, data: bytes) -> None:
        """Count the events."""
        data = self.tail + data
        self.events += data.count(b"\nevent: ")
        self.tail = data[-7:]


class Fleet:
    """All clients, and what they have measured."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.host = given.server
        self.keys = given.key_file.read_text().split()
        self.paths = given.ask
        self.period_s = given.askers / given.rate if given.rate else 0.0
        self.over = asyncio.Event()
        self.answers: list[tuple[float, float, int]] = []  # when, after how many seconds, with which status
        self.probes: list[tuple[float, float, int]] = []
        self.lags: list[tuple[float, float]] = []  # when, and how late this program's own loop was, in seconds
        self.streams: list[Stream] = []
        self.lost: Counter[str] = Counter()
        self.downloaded = 0

    async def run(self, given: argparse.Namespace) -> None:
        """Connect everybody, and wait for the end."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.over.set)
        host, port = given.server.split(":")
        for _ in range(given.downloads):
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED)
            slow.setblocking(False)
            await loop.sock_connect(slow, (host, int(port)))
            await loop.create_connection(lambda: Download(self, given.download), sock=slow)
        kinds = ((Stream, given.follow, given.streams), (Asker, "", given.askers), (Probe, "/healthz", PROBES))
        for kind, path, count in kinds:
            for _ in range(count):
                await loop.create_connection(lambda kind=kind, path=path: kind(self, path), host, int(port))
        print("ready", flush=True)
        while not self.over.is_set():
            begun = time.perf_counter()
            await asyncio.sleep(LAG_EVERY_S)
            self.lags.append((time.time(), time.perf_counter() - begun - LAG_EVERY_S))

    def figures(self) -> dict[str, Any]:
        """Return what was measured."""
        return {
            "answers": self.answers,
            "probes": self.probes,
            "lags": self.lags,
            "events": [stream.events for stream in self.streams],
            "lost": dict(self.lost),
            "downloaded": self.downloaded,
        }


def main() -> None:
    """Run the clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:8080", help="host:port")
    parser.add_argument("--key-file", type=Path, required=True, help="API keys, one a line; each request takes one")
    parser.add_argument("--ask", action="append", default=[], help="a path; more often named, more often asked for")
    parser.add_argument("--askers", type=int, default=500)
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second of all askers; 0: no pause")
    parser.add_argument("--follow", default="", help="path of the events")
    parser.add_argument("--streams", type=int, default=0)
    parser.add_argument("--download", default="", help="path of a large model")
    parser.add_argument("--downloads", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    try:
        import uvloop as loops
    except ImportError:
        loops = asyncio

    async def play() -> dict[str, Any]:
        fleet = Fleet(given)
        await fleet.run(given)
        return fleet.figures()

    given.out.write_text(json.dumps(loops.run(play())))


if __name__ == "__main__":
    main()
