"""Open pages of one federation in one cheap process: each follows the stream, and asks for the parts that have changed.

    python benchmarks/page_readers.py --server 127.0.0.1:8080 --key-file key --federation load --pages 50 --out got.json

A page does what `web/static/live.js` does: a part is asked for again after a second, and after four times as long as
its last answer took. It runs until SIGTERM, and then writes when each page was told what, and how long parts took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

PARTS = {
    "now": {"round", "federation", "device", "update", "rollout", "model", "server", "adoption"},
    "rounds": {"round"},
    "grid": {"round", "update"},
    "scores": {"round", "update"},
    "journal": {"*"},
}
MIN_S, REST = 1.0, 4.0
RECONNECT_S, MIN_STREAM_S = 3.0, 5.0


class Page:
    """One open page: its stream, and a connection for its parts."""

    def __init__(self, host: str, key: str, federation: str) -> None:
        self.host, self.here = host, f"/federations/{federation}"
        self.head = f"Host: {host}\r\nAuthorization: Bearer {key}\r\nAccept: text/html\r\n\r\n"
        self.told: list[tuple[float, str]] = []  # when, and which subjects
        self.took: list[float] = []
        self.refused = 0
        self._stale: set[str] = set()
        self._woken = asyncio.Event()
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def follow(self) -> None:
        """Read the stream, and note what it says; one that has come to its end is opened again, as browsers do."""
        while True:
            began = time.monotonic()
            await self._read_stream()
            if time.monotonic() - began < MIN_STREAM_S:
                raise SystemExit("a stream has ended at once")
            await asyncio.sleep(RECONNECT_S)

    async def _read_stream(self) -> None:
        reader, writer = await asyncio.open_connection(*self.host.split(":"))
        writer.write(f"GET {self.here}/events HTTP/1.1\r\n{self.head}".encode())
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            subjects = set(line[6:].decode().split())
            self.told.append((time.time(), " ".join(sorted(subjects))))
            self._stale |= {name for name, shown in PARTS.items() if "*" in shown | subjects or shown & subjects}
            self._woken.set()
        writer.close()

    async def refresh(self) -> None:
        """Ask for the parts that have changed, one after the other on one connection, again where it was closed."""
        due = dict.fromkeys(PARTS, 0.0)
        while True:
            now = time.monotonic()
            ready = [name for name in self._stale if due[name] <= now]
            if not ready:
                self._woken.clear()
                if not self._stale:
                    await self._woken.wait()
                else:
                    await asyncio.sleep(max(0.0, min(due[name] for name in self._stale) - now))
                continue
            for name in ready:
                self._stale.discard(name)
                took = await self._ask(f"/live{self.here}/{name}")
                due[name] = time.monotonic() + max(MIN_S, REST * took)

    async def _ask(self, path: str) -> float:
        begun = time.monotonic()
        try:
            reader, head = await self._head(path)
        except (asyncio.IncompleteReadError, ConnectionError):  # the server has closed the idle connection
            self._connection = None
            reader, head = await self._head(path)
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        self.took.append(time.monotonic() - begun)
        self.refused += not head.startswith(b"HTTP/1.1 200")
        return self.took[-1]

    async def _head(self, path: str) -> tuple[asyncio.StreamReader, bytes]:
        if self._connection is None:
            self._connection = await asyncio.open_connection(*self.host.split(":"))
        reader, writer = self._connection
        writer.write(f"GET {path} HTTP/1.1\r\n{self.head}".encode())
        return reader, await reader.readuntil(b"\r\n\r\n")


async def play(given: argparse.Namespace) -> dict[str, Any]:
    """Open the pages, and hold them until SIGTERM."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    key = given.key_file.read_text().strip()
    pages = [Page(given.server, key, given.federation) for _ in range(given.pages)]
    begun = time.time()
    tasks = [asyncio.create_task(work) for page in pages for work in (page.follow(), page.refresh())]
    print("ready", flush=True)
    waiting = asyncio.create_task(over.wait())
    done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    if waiting not in done:
        raise SystemExit(f"a page has ended: {[task.exception() for task in done]}")
    return {
        "from": begun,
        "to": time.time(),
        "told": [page.told for page in pages],
        "took": [seconds for page in pages for seconds in page.took],
        "refused": sum(page.refused for page in pages),
    }


def main() -> None:
    """Run the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:8080", help="host:port")
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument("--federation", required=True)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.write_text(json.dumps(asyncio.run(play(given))))


if __name__ == "__main__":
    main()
